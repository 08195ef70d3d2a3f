"""Reads a text that a person names: a kernel, a problem, a config, a reply. Never waits, never reads without end.

A name may stand for anything: a pipe that nobody writes to, a device that never ends, a directory, a core dump. What is
no ordinary file of a sensible size is refused before a byte of it is read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from engine.exit_codes import ExitCode

MOST_BYTES = 1 << 20
"""The most that a kernel, a problem or a config may have: a thousand times the usual."""

_KINDS = (
    (stat.S_ISDIR, "is a directory, not a file; name a file in it"),
    (stat.S_ISFIFO, "is a named pipe, not a file; write what comes out of it to a file first"),
    (stat.S_ISSOCK, "is a socket, not a file"),
    (stat.S_ISCHR, "is a device, not a file"),
    (stat.S_ISBLK, "is a device, not a file"),
)


class UnreadableFile(Exception):
    """A file that is not read. ``str()`` is the sentence to show; ``reason`` the same without the path."""

    exit_code = ExitCode.USAGE

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def read_text(path: Path, *, most_bytes: int = MOST_BYTES, errors: str = "strict") -> str:
    """The text of the ordinary file ``path``. Raises :class:`UnreadableFile`.

    ``errors``: as for ``bytes.decode``, what to do about bytes that are not UTF-8. A byte order mark is left out.
    """
    try:
        _refuse(path, path.stat(), most_bytes)
        # What the name stands for may change until it is open, and to open a pipe would wait for its writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            _refuse(path, os.fstat(file.fileno()), most_bytes)
            content = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise UnreadableFile(path, "no such file") from None
    except (OSError, ValueError) as error:
        raise UnreadableFile(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return _decoded(path, content, most_bytes, errors)


def read_stream(stream: BinaryIO, name: str, *, most_bytes: int = MOST_BYTES, errors: str = "strict") -> str:
    """The UTF-8 text that ``stream``, such as standard input, gives until its end. Raises :class:`UnreadableFile`."""
    return _decoded(name, stream.read(most_bytes + 1), most_bytes, errors)


def _refuse(path: Path, status: os.stat_result, most_bytes: int) -> None:
    """Raises UnreadableFile for what is no ordinary file, or too large."""
    for is_kind, reason in _KINDS:
        if is_kind(status.st_mode):
            raise UnreadableFile(path, reason)
    if status.st_size > most_bytes:
        raise UnreadableFile(path, _too_large(f"has {status.st_size:,} bytes", most_bytes))


def _too_large(what: str, most_bytes: int) -> str:
    return f"{what}; at most {most_bytes:,} are read, so this is hardly the file that was meant"


def _decoded(path: Path | str, content: bytes, most_bytes: int, errors: str) -> str:
    if len(content) > most_bytes:
        raise UnreadableFile(path, _too_large(f"has more than {most_bytes:,} bytes", most_bytes))
    try:
        return content.decode("utf-8-sig", errors).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UnreadableFile(path, f"is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
