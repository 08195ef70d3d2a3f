"""Where the files of one session lie."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from msgspec import Struct

from engine.session.errors import of_os


class SessionPaths(Struct, frozen=True):
    """The files of ``sessions/NAME/``. ``directory`` is made absolute by :meth:`at`."""

    directory: Path

    @classmethod
    def at(cls, directory: Path) -> SessionPaths:
        return cls(directory.absolute())

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def database(self) -> Path:
        return self.directory / "session.db"

    @property
    def lock(self) -> Path:
        """Held with ``flock`` by the living engine."""
        return self.directory / "engine.lock"

    @property
    def turn(self) -> Path:
        """Held with ``flock`` for the length of one write transaction, by whoever writes."""
        return self.directory / "write.lock"

    @property
    def log(self) -> Path:
        return self.directory / "engine.log"

    @property
    def config(self) -> Path:
        """The configuration as it was when the session was created."""
        return self.directory / "config.toml"

    def best(self, problem_id: str, suffix: str) -> Path:
        """The best kernel of a problem; ``suffix`` with its dot (``.cpp``)."""
        return self.directory / "best" / f"{problem_id}{suffix}"


def write_best(paths: SessionPaths, problem_id: str, suffix: str, source: str) -> Path:
    """Replace the best kernel's file atomically: a reader sees the old or the new one, whole. Raises SessionError."""
    target = paths.best(problem_id, suffix)
    try:
        target.parent.mkdir(exist_ok=True)
        replace_file(target, source.encode())
    except OSError as error:
        raise of_os(error, target) from error
    return target


def replace_file(target: Path, content: bytes) -> None:
    """Write beside ``target``, flush to disk, rename over it. Leaves no temporary file behind. Raises OSError."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
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
    """Make a new or renamed name in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
