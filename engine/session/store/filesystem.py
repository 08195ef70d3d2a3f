"""Check whether SQLite's WAL is safe on a file system, and suggest a safe directory.

WAL keeps its index in memory shared by all processes (https://sqlite.org/wal.html, section 1). This memory is not
coherent on network file systems or in folders shared with a host. The mount table gives the file system's type,
including the FUSE type.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from engine.session.store.errors import StorageError, UnsafeFileSystem, of_os

UNSAFE = {
    "nfs": "NFS",
    "nfs4": "NFS",
    "cifs": "SMB",
    "smb3": "SMB",
    "smbfs": "SMB",
    "ncpfs": "NetWare",
    "afs": "AFS",
    "9p": "9p",
    "ceph": "Ceph",
    "lustre": "Lustre",
    "gpfs": "GPFS",
    "beegfs": "BeeGFS",
    "vboxsf": "VirtualBox shared folder",
    "prl_fs": "Parallels shared folder",
    "fuse.sshfs": "sshfs",
    "fuse.rclone": "rclone",
    "fuse.glusterfs": "GlusterFS",
    "fuse.s3fs": "s3fs",
    "fuse.gcsfuse": "gcsfuse",
    "fuse.vmhgfs-fuse": "VMware shared folder",
}
"""File systems on which processes cannot share WAL's index safely, by mount type, with their common names."""

MOUNTS = Path("/proc/self/mountinfo")


def mount_type(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the file system that contains ``path`` (``ext4``, ``nfs4``). Return None if the mount table is
    unreadable.
    """
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return None
    found, depth = None, -1
    real = path.resolve()
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split(" ")[4]))
        if len(point.parts) >= depth and real.is_relative_to(point):
            found, depth = after.split(" ")[0], len(point.parts)
    return found


def make_root(root: Path) -> None:
    """Create the sessions directory if it is missing, and check that a database is safe there.

    Raises StorageError for a full disk, a read-only directory or an unsafe file system.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # The file system does not support directories, as in /proc.
        raise StorageError(
            f"{root}: this file system does not support directories; set another directory for sessions in the config",
            root,
        ) from error
    except OSError as error:
        raise of_os(error, root) from error
    check_file_system(root)


def check_file_system(directory: Path, mounts: Path = MOUNTS) -> None:
    """Raise UnsafeFileSystem if a session's database is unsafe in ``directory``."""
    kind = UNSAFE.get(mount_type(directory, mounts) or "")
    if kind is not None:
        raise UnsafeFileSystem(directory, kind, local_state_directory())


def local_state_directory() -> Path:
    """Return a safe directory to suggest for sessions: the XDG state directory."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "kernel-tui" / "sessions"
