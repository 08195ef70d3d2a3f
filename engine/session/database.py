"""The SQLite file of a session: schema, versions, and the three ways to connect (engine, command, reader).

One rule stands above SQLite's own locking: whoever writes takes a *turn* first (``write.lock``, flock), the engine for
each group commit with its checkpoint, a monitor for its one-row insert. SQLite 3.7.0 to 3.51.2 can, rarely, damage a
database when one connection resets the log while another one checkpoints (https://sqlite.org/wal.html); with turns
that never happens at the same time, and only the engine checkpoints while it lives.
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

from engine.session.errors import SessionBusy, SessionMissing, SessionNewer, not_a_session, of_os, of_sqlite
from engine.session.paths import SessionPaths

APPLICATION_ID = 0x4B_54_55_49
"""``KTUI``, in the header of the file: ``file session.db`` and foreign databases are told apart by it."""

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
    "",  # calls to models, and what they may cost
    "",  # answers that a proposer did not have
    "",  # winners at other sizes
    "",  # limits of one model, and of each problem
    "",  # waits for devices that other processes hold
)
"""Ordered: entry ``n`` takes a file from ``user_version`` n to n + 1. Entries are never edited, only appended; a new
kind of event or command is a new version too (an empty script), so that an older program refuses what it cannot read.
"""


@contextlib.contextmanager
def write_turn(paths: SessionPaths, timeout_s: float = BUSY_TIMEOUT_S) -> Iterator[None]:
    """Hold the session's write turn. Raises SessionBusy after ``timeout_s``, StorageError if it cannot be opened."""
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
                        f"{paths.turn}: another process has been writing for {timeout_s:g} s. Try again; look for a "
                        "suspended 'kernel-tui'.",
                        paths.turn,
                    ) from None
                time.sleep(0.002)
        yield
    finally:
        os.close(descriptor)


def create(paths: SessionPaths) -> None:
    """Make the database with its newest schema. Raises SessionError; the file must not exist."""
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
    """Bring the schema up to ``len(migrations)``, one transaction a step: a step happens whole or not at all."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    for step in range(version, len(migrations)):
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {migrations[step]}; PRAGMA user_version = {step + 1}; COMMIT;")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def connect_engine(paths: SessionPaths) -> sqlite3.Connection:
    """The engine's connection, which migrates an older file. For one thread, any thread. Raises SessionError."""
    connection = _connect_writing(paths)
    try:
        with write_turn(paths):
            migrate(connection, MIGRATIONS)
    except sqlite3.Error as error:
        connection.close()
        raise of_sqlite(error, paths.database) from error
    except BaseException:
        connection.close()
        raise
    return connection


def connect_command(paths: SessionPaths) -> sqlite3.Connection:
    """A monitor's connection for one short insert; leaves checkpoints to the engine. Raises SessionError."""
    connection = _connect_writing(paths)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def connect_reader(paths: SessionPaths) -> tuple[sqlite3.Connection, tempfile.TemporaryDirectory[str] | None]:
    """A read-only connection that never checkpoints, also where the directory is read-only. Raises SessionError.

    Beside it the private copy it reads from, or None: without write access SQLite cannot build the index of a log
    that an engine left behind (a session copied to read-only media after ``kill -9``).
    """
    database = paths.database
    _must_exist(paths)
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


def _must_exist(paths: SessionPaths) -> None:
    if not paths.directory.is_dir():
        raise SessionMissing(
            f"{paths.directory}: no such session. 'kernel-tui sessions' lists what there is.", paths.directory
        )
    if not paths.database.exists():
        raise not_a_session(paths.directory, "holds no session.db, so it is no session")
    must_be_files(paths)


def must_be_files(paths: SessionPaths) -> None:
    """Refuse a session with a pipe in the place of a file, which would be waited for for ever, or with a directory in
    that of the database. Raises NotASession."""
    beside = [paths.database.with_name(f"session.db{ending}") for ending in ("-wal", "-shm", "-journal")]
    for file in (paths.database, *beside, paths.lock, paths.turn, paths.config, paths.log):
        try:
            mode = file.stat().st_mode  # asked once: SQLite makes and removes files meanwhile
        except OSError:
            continue
        # SQLite opens a directory and fails at the first read; the other files are opened by us, who say so.
        if not stat.S_ISREG(mode) and (file == paths.database or not stat.S_ISDIR(mode)):
            raise not_a_session(file, "is no regular file, so this is no session of kernel-tui")


def _connect_writing(paths: SessionPaths) -> sqlite3.Connection:
    _must_exist(paths)
    # Asked first: SQLite opens a read-only file all the same and fails at the first write.
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
"""A view, whose rows may never end, a trigger or a virtual table: who asks those runs what someone has written."""


def _opened(database: Path, mode: str) -> sqlite3.Connection:
    """Connect and check that it is a session of a version this program knows.

    Identity is asked of SQLite rather than read from the file: closing a plain descriptor of the database would drop
    every POSIX lock that this process holds on it.
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
            raise not_a_session(database, "is no session of kernel-tui")
        if version > len(MIGRATIONS):
            raise SessionNewer(
                f"{database}: written by a newer kernel-tui (format {version}; this one knows {len(MIGRATIONS)}). "
                "Update kernel-tui to open it.",
                database,
            )
        if connection.execute(_CODE).fetchone() is not None:
            raise not_a_session(database, "has views or triggers, which no session of kernel-tui has")
    except BaseException:
        connection.close()
        raise
    return connection
