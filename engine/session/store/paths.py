"""Paths of the files in a session's directory."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

from msgspec import Struct

from engine.session.store.errors import ConfigMissing, of_os

_DATABASE = "session.db"
_PACKED = f"{_DATABASE}.xz"


class SessionPaths(Struct, frozen=True):
    """The files of ``sessions/NAME/``. Create it with :meth:`at`, which makes ``directory`` absolute and
    free of ``..``.
    """

    directory: Path

    @classmethod
    def at(cls, directory: Path) -> SessionPaths:
        absolute = directory.absolute()
        # realpath() also replaces symbolic links, whose names users know, so call it only for a path with "..".
        return cls(Path(os.path.realpath(absolute)) if ".." in absolute.parts else absolute)

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def quoted(self) -> str:
        """The directory's path, quoted for a shell command."""
        return shlex.quote(str(self.directory))

    @property
    def database(self) -> Path:
        return self.directory / _DATABASE

    @property
    def packed(self) -> Path:
        """The database in packed form. If both files exist, the database takes precedence."""
        return self.directory / _PACKED

    @property
    def exists(self) -> bool:
        """Whether the directory contains a session, packed or not."""
        return self.database.exists() or self.packed.exists()

    @property
    def is_packed(self) -> bool:
        return not self.database.exists() and self.packed.exists()

    @property
    def lock(self) -> Path:
        """File that a running engine locks with ``flock``."""
        return self.directory / "engine.lock"

    @property
    def turn(self) -> Path:
        """File that each writer locks with ``flock`` during one write transaction."""
        return self.directory / "write.lock"

    @property
    def log(self) -> Path:
        return self.directory / "engine.log"

    @property
    def config(self) -> Path:
        """The session's frozen configuration."""
        return self.directory / "config.toml"

    def best(self, problem_id: str, suffix: str) -> Path:
        """Path of a problem's best kernel. ``suffix`` includes the dot (``.cpp``)."""
        return self.directory / "best" / f"{problem_id}{suffix}"


def must_have_config(paths: SessionPaths) -> None:
    """Raise ConfigMissing if the session's directory lacks its copy of the configuration."""
    if not paths.config.exists():
        raise ConfigMissing(paths.config)


def sessions_in(root: Path, pattern: str = "*") -> list[Path]:
    """Return the directories in ``root`` whose names match ``pattern`` and that contain a session, packed or not."""
    return sorted({file.parent for name in (_DATABASE, _PACKED) for file in root.glob(f"{pattern}/{name}")})


def write_best(paths: SessionPaths, problem_id: str, suffix: str, source: str) -> Path:
    """Replace the best kernel's file atomically: a reader sees either the complete old file or the complete new one.
    Raises SessionError.
    """
    target = paths.best(problem_id, suffix)
    try:
        target.parent.mkdir(exist_ok=True)
        replace_file(target, source.encode())
    except OSError as error:
        raise of_os(error, target) from error
    return target


def replace_file(target: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a temporary file, flush it to disk, and rename it to ``target``. On failure, delete the temporary file.
    ``mode``: permissions of the file, reduced by the umask. Raises OSError.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """Make new or renamed entries in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def session_argument(directory: Path) -> str:
    """Return the argument that names a session in a shell command. A session in the default directory needs only its
    name.
    """
    return shlex.quote(directory.name if directory.parent.name == "sessions" else str(directory))
