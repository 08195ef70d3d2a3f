"""What can go wrong with a session file, each as one sentence with the path and the remedy."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import msgspec

from engine.exit_codes import ExitCode

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding JSON that anyone may have written can raise; the last for what is nested too deep."""


class SessionError(Exception):
    """Base of all errors of the session file. ``str()`` is the sentence to show, ``exit_code`` the process's status.

    ``brief`` is the sentence where only a line or two are free, and the session known: what happened comes first.
    """

    exit_code: ExitCode = ExitCode.FAILURE

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path
        self.brief = message.removeprefix(f"{path.parent}/")


class SessionMissing(SessionError):
    exit_code = ExitCode.NO_SESSION


class NotASession(SessionError):
    """The file is foreign, truncated or empty."""

    exit_code = ExitCode.NO_SESSION


class SessionDamaged(SessionError):
    """SQLite or the event decoder found rows that cannot be read."""


class SessionNewer(SessionError):
    exit_code = ExitCode.SESSION_NEWER


class SessionLocked(SessionError):
    """An engine lives on the session. ``pid`` is None where its lock file does not say."""

    exit_code = ExitCode.SESSION_LOCKED

    def __init__(self, path: Path, pid: int | None) -> None:
        who = f"engine {pid}" if pid is not None else "another engine"
        super().__init__(
            f"{path}: {who} is already searching in this session. Attach to it with 'kernel-tui attach {path.name}' "
            f"or end it with 'kernel-tui stop {path.name}'.",
            path,
        )
        self.pid = pid


class SessionBusy(SessionError):
    """Another process kept the database for longer than the busy timeout."""

    exit_code = ExitCode.SESSION_LOCKED


class StorageError(SessionError):
    """The disk is full, read-only, failing, or a file system on which WAL is unsafe."""

    exit_code = ExitCode.STORAGE


class UnsafeFileSystem(StorageError):
    """WAL needs shared memory between processes, which network file systems do not give.

    ``local`` is the directory to offer instead.
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
    """The session error for a failed file operation below ``path``."""
    said = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return _full(path, said)
    if error.errno in _READ_ONLY:
        return _read_only(path, said)
    if error.errno == errno.ENOENT:
        return SessionMissing(f"{path}: {said}. 'kernel-tui sessions' lists what there is.", path)
    return StorageError(f"{path}: {said}.", path)


def of_sqlite(error: sqlite3.Error, path: Path) -> SessionError:
    """The session error for what SQLite said of the database ``path``."""
    code = getattr(error, "sqlite_errorcode", None)
    name = getattr(error, "sqlite_errorname", "")
    match None if code is None else code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return _full(path, str(error))
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return _read_only(path, str(error))
        case sqlite3.SQLITE_CANTOPEN:
            return StorageError(f"{path}: cannot be opened ({error}). Check the permissions of the directory.", path)
        case sqlite3.SQLITE_IOERR:
            # SQLite maps and grows some files without saying why that failed.
            if _free_bytes(path) < _FULL_BELOW_BYTES:
                return _full(path, name or str(error))
            return StorageError(
                f"{path}: reading or writing failed ({name or error}). Check for a full or failing disk, a quota or a "
                "file size limit, then resume; everything recorded so far is kept.",
                path,
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return SessionBusy(
                f"{path}: another process keeps the database busy ({error}). Try again; "
                "close any database browser that has it open.",
                path,
            )
        case sqlite3.SQLITE_NOTADB:
            return not_a_session(path, "is no SQLite database, or was cut short")
        case sqlite3.SQLITE_CORRUPT:
            return _damaged(path, str(error))
    if "decode to UTF-8" in str(error):  # Python's own word, which quotes the whole of it
        return _damaged(path, "it holds text that is not UTF-8")
    return SessionError(f"{path}: {error}.", path)


def not_a_session(path: Path, why: str) -> NotASession:
    return NotASession(f"{path}: {why}. 'kernel-tui sessions' lists the sessions there are.", path)


def _damaged(path: Path, said: str) -> SessionDamaged:
    return SessionDamaged(
        f"{path}: the database is damaged ({said}). Recover what is readable with "
        f"'sqlite3 {path} .recover', or start a new session.",
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
        f"{path}: no space left to write ({said}). Free some and resume; everything recorded so far is kept.", path
    )


def _read_only(path: Path, said: str) -> StorageError:
    return StorageError(
        f"{path}: cannot be written ({said}). Make it writable, or name another directory of sessions in the config.",
        path,
    )
