"""Errors about session files. Each message states the failure, the path and the remedy."""

from __future__ import annotations

import errno
import os
import shlex
import sqlite3
from pathlib import Path

import msgspec

from engine.exit_codes import ExitCode

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions from decoding untrusted JSON. RecursionError means that the JSON is nested too deeply."""


class SessionError(Exception):
    """Base class for errors about session files. The exception's text is the full message; ``exit_code`` is the
    process's exit status.

    ``brief`` is the message without the session's path, for narrow screens.
    """

    exit_code: ExitCode = ExitCode.FAILURE

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path
        self.brief = message.removeprefix(f"{path.parent}/")


class SessionMissing(SessionError):
    exit_code = ExitCode.NO_SESSION


class ConfigMissing(SessionError):
    """The session's directory lacks its copy of the config."""

    exit_code = ExitCode.USAGE

    def __init__(self, config: Path) -> None:
        super().__init__(
            f"{config}: the session's own copy of its config is missing. Restore this file, for example from a backup "
            "or from a packed copy of the session.",
            config,
        )


class NotASession(SessionError):
    """The file is truncated, empty, or not a session."""

    exit_code = ExitCode.NO_SESSION


class SessionDamaged(SessionError):
    """The database is damaged, or an event is unreadable or contradicts earlier events."""


class SessionNewer(SessionError):
    exit_code = ExitCode.SESSION_NEWER


class SessionLocked(SessionError):
    """An engine is already running the session. ``pid`` is None if the lock file does not name a process."""

    exit_code = ExitCode.SESSION_LOCKED

    def __init__(self, path: Path, pid: int | None) -> None:
        who = f"engine {pid}" if pid is not None else "another engine"
        argument = shlex.quote(str(path))
        super().__init__(
            f"{path}: {who} is already running this session. To watch it: kernel-tui attach {argument}; to end it: "
            f"kernel-tui stop {argument}",
            path,
        )
        self.pid = pid


class SessionBusy(SessionError):
    """Another process held the database's lock for longer than the busy timeout."""

    exit_code = ExitCode.SESSION_LOCKED


class StorageError(SessionError):
    """The disk is full, read-only or failing, or its file system is unsafe for WAL."""

    exit_code = ExitCode.STORAGE


class UnsafeFileSystem(StorageError):
    """The file system lacks the shared memory that SQLite's WAL needs.

    Most network file systems lack this memory. ``local`` is a safe directory to suggest.
    """

    def __init__(self, path: Path, kind: str, local: Path) -> None:
        super().__init__(
            f"{path}: this is a {kind} file system, where SQLite's write-ahead log can lose or damage data. "
            f'Keep sessions on a local disk, for example with sessions = "{local}" in the config.',
            path,
        )
        self.kind = kind
        self.local = local


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_FULL_BELOW_BYTES = 1 << 20


def of_os(error: OSError, path: Path) -> SessionError:
    """Convert a failed file operation on ``path`` to a session error."""
    said = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return _full(path, said)
    if error.errno in _READ_ONLY:
        return _read_only(path, said)
    if error.errno == errno.ENOENT:
        return SessionMissing(f"{path}: {said}. List the sessions with: kernel-tui sessions", path)
    return StorageError(f"{path}: {said}.", path)


def of_sqlite(error: sqlite3.Error, path: Path) -> SessionError:
    """Convert an SQLite error about the database ``path`` to a session error."""
    code = getattr(error, "sqlite_errorcode", None)
    name = getattr(error, "sqlite_errorname", "")
    match None if code is None else code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return _full(path, str(error))
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return _read_only(path, str(error))
        case sqlite3.SQLITE_CANTOPEN:
            return StorageError(
                f"{path}: SQLite cannot open the database ({error}). Check the permissions of its directory.", path
            )
        case sqlite3.SQLITE_IOERR:
            # SQLite does not report why it could not map or grow a file, so check for a full disk.
            if _free_bytes(path) < _FULL_BELOW_BYTES:
                return _full(path, name or str(error))
            return StorageError(
                f"{path}: SQLite cannot read or write the database ({name or error}). Check for a full or failing "
                "disk, a quota or a file size limit, then resume the session. All recorded events are safe.",
                path,
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return SessionBusy(
                f"{path}: another process is using the database ({error}). Close any database browser that has it "
                "open, then try again.",
                path,
            )
        case sqlite3.SQLITE_NOTADB:
            return not_a_session(path, "the file is truncated, or is not an SQLite database")
        case sqlite3.SQLITE_CORRUPT:
            return _damaged(path, str(error))
    if "decode to UTF-8" in str(error):  # Python's own message would quote the whole text.
        return _damaged(path, "it contains text that is not UTF-8")
    return SessionError(f"{path}: {error}.", path)


def not_a_session(path: Path, why: str) -> NotASession:
    return NotASession(f"{path}: {why}. List the sessions with: kernel-tui sessions", path)


def _damaged(path: Path, said: str) -> SessionDamaged:
    return SessionDamaged(
        f"{path}: the database is damaged ({said}). Start a new session, or recover the "
        f"readable part with: sqlite3 {shlex.quote(str(path))} .recover",
        path,
    )


def _free_bytes(path: Path) -> int:
    try:
        room = os.statvfs(path.parent)
    except OSError:
        return _FULL_BELOW_BYTES
    return room.f_bavail * room.f_frsize


def _full(path: Path, said: str) -> StorageError:
    return StorageError(
        f"{path}: the disk has no space left ({said}). Free some space, then start or resume the search. All "
        "recorded events are safe.",
        path,
    )


def _read_only(path: Path, said: str) -> StorageError:
    return StorageError(
        f"{path}: kernel-tui cannot write to this path ({said}). Make it writable, or set another directory for "
        "sessions in the config.",
        path,
    )
