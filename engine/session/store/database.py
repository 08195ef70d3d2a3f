"""A session's SQLite file: the schema, its versions, and the three kinds of connections (engine, command, reader).

In addition to SQLite's locking, every writer holds a write lock (``flock`` on ``write.lock``). The engine holds the
lock for each group commit with its checkpoint; a monitor holds it for its one-row insert. SQLite 3.7.0 to 3.51.2 can,
rarely, damage a database if one connection resets the log while another connection checkpoints
(https://sqlite.org/wal.html). The write lock prevents this overlap, and only the engine checkpoints while it runs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from engine.session.store.errors import SessionBusy, SessionMissing, SessionNewer, not_a_session, of_os, of_sqlite
from engine.session.store.paths import SessionPaths
from engine.session.store.shipped.packed import unpack, unpack_in_place

APPLICATION_ID = 0x4B_54_55_49
"""Application id in the file's header: ``KTUI``. This number lets tools such as ``file`` distinguish sessions from
other databases.
"""

BUSY_TIMEOUT_S = 5.0

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE event (
        seq INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, json TEXT NOT NULL
    ) STRICT;
    CREATE INDEX event_command_handled ON event (seq) WHERE kind = 'command_handled';
    CREATE TABLE blob (digest TEXT PRIMARY KEY, compressed BLOB NOT NULL, created REAL NOT NULL) STRICT;
    CREATE TABLE command (
        id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, author TEXT NOT NULL, json TEXT NOT NULL
    ) STRICT;
    CREATE TABLE sample (id INTEGER PRIMARY KEY, time REAL NOT NULL, json TEXT NOT NULL) STRICT;
    CREATE INDEX sample_time ON sample (time);
    CREATE TABLE heartbeat (
        only INTEGER PRIMARY KEY CHECK (only = 1), time REAL NOT NULL, pid INTEGER NOT NULL, note TEXT NOT NULL
    ) STRICT;
    """,
    "",  # model calls and their maximum cost
    "",  # missing answers of proposers
    "",  # best kernels at other sizes
    "",  # limits per model and per problem
    "",  # waits for devices that other processes occupy
    # Problems that no proposer supports, repeated sources, and heartbeats by the engine's own clock.
    "ALTER TABLE heartbeat ADD COLUMN engine_time REAL;",
    "",  # turns: problems that are searched one at a time
    "",  # Triton, several languages per problem, and hardware counters
)
"""Migrations of the schema: entry ``n`` upgrades a file from ``user_version`` n to n + 1. Append entries, but never
edit one. A new kind of event or request also needs a new version (an empty script), so that an older program rejects
the file.
"""


@contextlib.contextmanager
def write_lock(paths: SessionPaths, timeout_s: float = BUSY_TIMEOUT_S) -> Iterator[None]:
    """Hold the session's write lock. Raises SessionBusy after ``timeout_s``, and StorageError if the lock file cannot
    be opened.
    """
    try:
        descriptor = os.open(paths.turn, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise of_os(error, paths.turn) from error
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SessionBusy(
                        f"{paths.turn}: another process has been writing for {timeout_s:g} s. If a "
                        "'kernel-tui' process is suspended, continue or end it. Then try again.",
                        paths.turn,
                    ) from None
                time.sleep(0.002)
        yield
    finally:
        os.close(descriptor)


def create(paths: SessionPaths) -> None:
    """Create the database with the newest schema. The file must not exist. Raises SessionError."""
    connection = sqlite3.connect(paths.database, isolation_level=None)
    try:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        migrate(connection, MIGRATIONS)
    except sqlite3.Error as error:
        raise of_sqlite(error, paths.database) from error
    finally:
        connection.close()


def migrate(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Upgrade the schema to version ``len(migrations)``. Each step is one transaction."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    for step in range(version, len(migrations)):
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {migrations[step]}; PRAGMA user_version = {step + 1}; COMMIT;")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def connect_engine(paths: SessionPaths) -> sqlite3.Connection:
    """Open the engine's connection, and migrate an older file. Only one thread at a time may use the connection. Raises
    SessionError.
    """
    connection = _connect_writing(paths)
    try:
        with write_lock(paths):
            migrate(connection, MIGRATIONS)
    except sqlite3.Error as error:
        connection.close()
        raise of_sqlite(error, paths.database) from error
    except BaseException:
        connection.close()
        raise
    return connection


def connect_command(paths: SessionPaths) -> sqlite3.Connection:
    """Open a connection for one short insert by a monitor. Only the engine checkpoints. Raises SessionError."""
    connection = _connect_writing(paths)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def connect_reader(paths: SessionPaths) -> tuple[sqlite3.Connection, tempfile.TemporaryDirectory[str] | None]:
    """Open a read-only connection without checkpoints. The directory may be read-only. Raises SessionError.

    Returns:
        The connection, and the private copy of the database that it reads, or None without a copy. A packed session
        always needs a copy. A copy is also necessary if a dead engine left a log on read-only media: SQLite needs write
        access to index the log.
    """
    database = paths.database
    _must_exist(paths)
    if not database.exists():
        with contextlib.suppress(FileNotFoundError):  # An engine may have just unpacked the session.
            return _opened_packed(paths)
    try:
        return _opened(database, "mode=ro"), None
    except sqlite3.OperationalError as error:
        if (error.sqlite_errorcode & 0xFF) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise of_sqlite(error, database) from error
    except sqlite3.Error as error:
        raise of_sqlite(error, database) from error
    log = database.with_name(database.name + "-wal")
    try:
        if not log.exists() or log.stat().st_size == 0:
            return _opened(database, "mode=ro&immutable=1"), None
        private = tempfile.TemporaryDirectory(prefix="kernel-tui-")
        for file in (database, log):
            shutil.copyfile(file, Path(private.name) / file.name)
        return _opened(Path(private.name) / database.name, "mode=ro"), private
    except sqlite3.Error as error:
        raise of_sqlite(error, database) from error
    except OSError as error:
        raise of_os(error, database) from error


def _opened_packed(paths: SessionPaths) -> tuple[sqlite3.Connection, tempfile.TemporaryDirectory[str]]:
    private = tempfile.TemporaryDirectory(prefix="kernel-tui-")
    copy = Path(private.name) / paths.database.name
    try:
        unpack(paths.packed, copy)
        return _opened(copy, "mode=ro"), private
    except BaseException as error:
        private.cleanup()
        if isinstance(error, sqlite3.Error):
            raise of_sqlite(error, paths.packed) from error
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise of_os(error, copy) from error
        raise


def _must_exist(paths: SessionPaths) -> None:
    if not paths.directory.is_dir():
        raise SessionMissing(
            f"{paths.directory}: no such session. List the sessions with: kernel-tui sessions", paths.directory
        )
    if not paths.exists:
        raise not_a_session(paths.directory, "the directory contains no session.db, so it is not a session")
    must_be_files(paths)


def must_be_files(paths: SessionPaths) -> None:
    """Reject a session with a pipe in place of a file, or with a directory in place of the database. Raises
    NotASession.

    Opening a pipe would block forever.
    """
    beside = [paths.database.with_name(f"session.db{ending}") for ending in ("-wal", "-shm", "-journal")]
    for file in (paths.database, paths.packed, *beside, paths.lock, paths.turn, paths.config, paths.log):
        try:
            mode = file.stat().st_mode  # Call stat only once, because SQLite creates and deletes files.
        except OSError:
            continue
        # SQLite opens a directory as a database and fails only at the first read. If another file is a directory,
        # opening it fails at once.
        if not stat.S_ISREG(mode) and (file in (paths.database, paths.packed) or not stat.S_ISDIR(mode)):
            raise not_a_session(file, "this is not a regular file, so kernel-tui did not create it")


def _connect_writing(paths: SessionPaths) -> sqlite3.Connection:
    _must_exist(paths)
    if not paths.database.exists():
        with write_lock(paths):
            unpack_in_place(paths)
    # Check permissions first, because SQLite opens a read-only file without an error and fails only at the first write.
    for place in (paths.directory, paths.database):
        if not os.access(place, os.W_OK):
            raise of_os(PermissionError(errno.EACCES, ""), place)
    connection: sqlite3.Connection | None = None
    try:
        connection = _opened(paths.database, "mode=rw")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise of_sqlite(error, paths.database) from error
    return connection


_CODE = "SELECT 1 FROM sqlite_master WHERE coalesce(rootpage, 0) = 0 LIMIT 1"
"""SQL query that finds a view, a trigger or a virtual table. Queries on these could run untrusted code or never end."""


def _opened(database: Path, mode: str) -> sqlite3.Connection:
    """Connect to a database, and check that it is a session of a known version.

    Ask SQLite for the file's identity instead of reading the file. Closing a file descriptor of the database would
    release all POSIX locks that this process holds on the database.
    """
    connection = sqlite3.connect(
        f"file:{quote(str(database))}?{mode}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT_S,
        check_same_thread=False,
    )
    try:
        identity = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if identity != APPLICATION_ID or version <= 0:
            raise not_a_session(database, "the database is not a kernel-tui session")
        if version > len(MIGRATIONS):
            raise SessionNewer(
                f"{database}: a newer kernel-tui wrote this session (format {version}; this kernel-tui reads up to "
                f"{len(MIGRATIONS)}). Update kernel-tui to open the session.",
                database,
            )
        if connection.execute(_CODE).fetchone() is not None:
            raise not_a_session(database, "the database contains views or triggers, so kernel-tui did not write it")
    except BaseException:
        connection.close()
        raise
    return connection
