"""Recorded sessions that ship with kernel-tui. kernel-tui never changes these sessions. When you resume one of them,
kernel-tui continues it in a copy.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path

from engine.exit_codes import ExitCode
from engine.session.store.errors import SessionError, of_os
from engine.session.store.filesystem import make_root
from engine.session.store.paths import SessionPaths, sync_directory

_NAMES = ("by-hand", "headline-h200", "kernelbench-level1", "kernelbench-level2", "kernelbench-level3")
"""Sessions in a checkout. An installation has only ``by-hand``."""
_ROOT = Path(__file__).resolve().parents[4] / "sessions"
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
"""Error numbers of a rename to a name that another process has just taken."""
_NOT_COPIED = shutil.ignore_patterns("*.lock", "session.db-*", ".*")


class SessionBundled(SessionError):
    """The session ships with kernel-tui, so nothing may write to it."""

    exit_code = ExitCode.USAGE


def bundled_directories(name: str) -> list[Path]:
    """Return the directory of the bundled session ``name``, if there is one."""
    return [_ROOT / name] if name in _NAMES else []


def is_bundled(paths: SessionPaths) -> bool:
    """Return whether the session ships with kernel-tui."""
    return paths.name in _NAMES and paths.directory.resolve().parent == _ROOT


def must_not_be_bundled(paths: SessionPaths) -> None:
    """Raise SessionBundled before a write to a bundled session."""
    if is_bundled(paths):
        raise SessionBundled(
            f"{paths.directory}: this session ships with kernel-tui, which never changes it. To continue in a copy: "
            f"kernel-tui resume {paths.name}",
            paths.directory,
        )


def own_copy(paths: SessionPaths, root: Path) -> SessionPaths:
    """Return a session for writing. For a bundled session, create a copy with a free name below ``root``. The copy
    appears only when it is complete. Raises SessionError if the copy cannot be written, or if ``root`` is unsafe.
    """
    if not is_bundled(paths):
        return paths
    make_root(root)
    root = root.absolute()
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{paths.name}-", dir=root))
        try:
            copied = draft / paths.name  # No command lists sessions at this depth.
            shutil.copytree(paths.directory, copied, ignore=_NOT_COPIED, copy_function=shutil.copyfile)
            finish_copy(copied)
            return SessionPaths(_move(copied, root))
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise of_os(error, root / paths.name) from error


def finish_copy(directory: Path) -> None:
    """Make copied folders writable, because an installation's folders may be read-only, and flush the files to disk."""
    for folder in (directory, *directory.rglob("*/")):
        folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
        for file in folder.iterdir():
            if file.is_file():
                with file.open("rb+") as opened:
                    os.fsync(opened.fileno())
        sync_directory(folder)


def _move(directory: Path, root: Path) -> Path:
    """Rename ``directory`` to its first free name in ``root``: NAME, NAME-2, and so on."""
    number = 1
    while True:
        target = root / (directory.name if number == 1 else f"{directory.name}-{number}")
        if not target.exists():
            try:
                directory.rename(target)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            else:
                sync_directory(root)
                return target
        number += 1
