"""Whether SQLite's WAL is safe where a session is to lie, and where else it could lie.

WAL keeps its index in memory that all processes map (https://sqlite.org/wal.html, section 1), which network and
host-shared file systems do not keep coherent. The kernel's mount table names the file system, FUSE's kind included.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from engine.session.errors import UnsafeFileSystem

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
"""Mount types on which processes do not share WAL's index safely, with the names people know them by."""

MOUNTS = Path("/proc/self/mountinfo")


def mount_type(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the file system that holds ``path`` (``ext4``, ``nfs4``), None where the system does not tell."""
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


def check_file_system(directory: Path, mounts: Path = MOUNTS) -> None:
    """Raises UnsafeFileSystem for a directory in which a session's database must not be written."""
    kind = UNSAFE.get(mount_type(directory, mounts) or "")
    if kind is not None:
        raise UnsafeFileSystem(directory, kind, local_state_directory())


def local_state_directory() -> Path:
    """Where sessions can lie when the project's own file system is unsafe: the XDG state directory."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "kernel-tui" / "sessions"
