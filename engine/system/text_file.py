"""Read text files that a person names: kernels, problems, configs, replies.

Reads never block and have a size limit. A path can refer to a pipe, an endless device, a directory or a core dump.
The reader accepts only regular files of plausible size.
"""

from __future__ import annotations

import contextlib
import os
import stat
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

from engine.exit_codes import ExitCode

MOST_BYTES = 1 << 20
"""Maximum size of a kernel, problem or config, in bytes: a thousand times the usual size."""

_KINDS = (
    (stat.S_ISDIR, "is a directory, not a file; name a file in it"),
    (stat.S_ISFIFO, "is a named pipe, not a file; write its output to a file first"),
    (stat.S_ISSOCK, "is a socket, not a file"),
    (stat.S_ISCHR, "is a device, not a file"),
    (stat.S_ISBLK, "is a device, not a file"),
)


class UnreadableFile(Exception):
    """A file that the reader cannot or must not read. The exception's text is the full message; ``reason`` omits the
    path."""

    exit_code = ExitCode.USAGE

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def read_text(path: Path, *, most_bytes: int = MOST_BYTES, errors: str = "strict") -> str:
    """Read the regular file ``path`` as text, without a byte order mark. Raises :class:`UnreadableFile`.

    ``errors`` sets how to treat bytes that are not UTF-8, as in ``bytes.decode``.
    """
    try:
        _refuse(path, path.stat(), most_bytes)
        # By now, the path may refer to another file, and opening a pipe without O_NONBLOCK would block.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            _refuse(path, os.fstat(file.fileno()), most_bytes)
            content = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise UnreadableFile(path, f"no such file{_similar_file(path)}") from None
    except (OSError, ValueError) as error:
        raise UnreadableFile(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return _decoded(path, content, most_bytes, errors)


def read_stream(stream: BinaryIO, name: str, *, most_bytes: int = MOST_BYTES, errors: str = "strict") -> str:
    """Read UTF-8 text from ``stream``, such as standard input, to its end. Raises :class:`UnreadableFile`."""
    return _decoded(name, stream.read(most_bytes + 1), most_bytes, errors)


def _refuse(path: Path, status: os.stat_result, most_bytes: int) -> None:
    """Raise UnreadableFile unless the file is a regular file within the size limit."""
    for is_kind, reason in _KINDS:
        if is_kind(status.st_mode):
            raise UnreadableFile(path, reason)
    if status.st_size > most_bytes:
        raise UnreadableFile(path, _too_large(f"has {status.st_size:,} bytes", most_bytes))


def _too_large(what: str, most_bytes: int) -> str:
    return f"{what}; the limit is {most_bytes:,} bytes. Check that this is the right file"


def _decoded(path: Path | str, content: bytes, most_bytes: int, errors: str) -> str:
    if len(content) > most_bytes:
        raise UnreadableFile(path, _too_large("is too large", most_bytes))
    try:
        return content.decode("utf-8-sig", errors).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UnreadableFile(path, f"is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def _similar_file(path: Path) -> str:
    """Return a suggestion if the directory has a file with a similar name and the same suffix."""
    with contextlib.suppress(OSError):
        names = [one.name for one in path.parent.iterdir() if one.suffix == path.suffix]
        if near := get_close_matches(path.name, names, n=1):
            return f"; did you mean {path.with_name(near[0])}?"
    return ""
