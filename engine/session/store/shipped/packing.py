"""Make a packed copy of a session."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from engine.session.records.events import EngineStopped, encode, kind_of
from engine.session.store.errors import SessionDamaged, StorageError, of_os, of_sqlite
from engine.session.store.lock import engine_liveness
from engine.session.store.paths import SessionPaths, replace_file, sync_directory
from engine.session.store.reader import SessionReader
from engine.session.store.shipped.bundled import finish_copy
from engine.session.store.shipped.packed import pack

COPIED = "copied while the search was running; to continue, resume the session"
"""Message of the ``engine_stopped`` event that ends the copy of a running session."""
_COPIED = ("config.toml", "profiles")
"""Files and directories that a copy contains besides the database. Other files belong to the recording machine (such as
logs and a cluster's private keys) or repeat the database.
"""


def pack_session(paths: SessionPaths, target: Path, relative_to: Iterable[Path] = ()) -> SessionPaths:
    """Write a packed copy of a session to the directory ``target``. Every command reads the copy like the original.

    The copy appears only when it is complete. The session's engine may be running. The copy then ends at the last
    commit, and its ``engine_stopped`` event says that the search was running.

    Args:
        target: Must not exist.
        relative_to: Directories, such as the home directory. The copy records paths below these directories as
            relative paths, but only in events, requests and the configuration.

    Raises:
        SessionError: ``target`` exists or cannot be written, or the session is unreadable.
    """
    target = target.absolute()
    if target.exists():
        raise StorageError(f"{target}: this path already exists. Name another directory.", target)
    directories = [directory.absolute() for directory in relative_to]
    if Path("/") in directories:
        raise StorageError("/: paths cannot be relative to the root directory. Name a directory below it.", target)
    prefixes = sorted((f"{directory}/" for directory in directories), key=len, reverse=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as name:
            draft = SessionPaths(Path(name) / target.name)
            draft.directory.mkdir()
            for one in _COPIED:
                _copy(paths.directory / one, draft.directory / one)
            database = Path(name) / "plain.db"  # No command lists a database that is not named session.db.
            with SessionReader(paths) as reader:
                running = engine_liveness(paths, reader).running
                reader.copy_to(database)
            if running:
                _record_stop(database)
            if prefixes:
                _shorten(database, draft, prefixes)
            pack(database, draft.packed)
            finish_copy(draft.directory)
            draft.directory.rename(target)
            sync_directory(target.parent)
    except sqlite3.Error as error:
        raise of_sqlite(error, target) from error
    except zlib.error as error:
        text = f"{paths.database}: a blob is damaged ({error}). Restore a backup."
        raise SessionDamaged(text, paths.database) from error
    except OSError as error:
        raise of_os(error, target) from error
    return SessionPaths(target)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or directory if it exists."""
    if source.is_dir():
        shutil.copytree(source, target, copy_function=shutil.copyfile)
    elif source.exists():
        shutil.copyfile(source, target)


def _record_stop(database: Path) -> None:
    """End the copy with an ``engine_stopped`` event. Otherwise, readers would conclude that the engine died."""
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        last = connection.execute(
            "SELECT kind FROM event WHERE kind IN ('engine_started', 'engine_stopped') ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        if last == ("engine_started",):
            stopped = EngineStopped(reason="signal", message=COPIED)
            connection.execute(
                "INSERT INTO event (time, kind, json) SELECT max(time), ?, ? FROM "
                "(SELECT time FROM event UNION ALL SELECT engine_time FROM heartbeat)",
                (kind_of(stopped), encode(stopped).decode()),
            )
    finally:
        connection.close()


def _shorten(database: Path, draft: SessionPaths, prefixes: Iterable[str]) -> None:
    """Remove ``prefixes`` from the paths in the database and in the copy's configuration file."""
    connection = sqlite3.connect(database, isolation_level=None)
    connection.create_function("without", 2, without_prefix, deterministic=True)
    try:
        connection.execute("BEGIN")
        for prefix in prefixes:
            escaped = json.dumps(prefix, ensure_ascii=False)[1:-1]
            for table in ("event", "command"):
                connection.execute(f"UPDATE {table} SET json = without(json, ?)", (escaped,))
            connection.execute("UPDATE about SET value = without(value, ?)", (prefix,))
            _shorten_config(connection, prefix)
        connection.execute("COMMIT")
    finally:
        connection.close()
    text = draft.config.read_text(encoding="utf-8")
    for prefix in prefixes:
        text = without_prefix(text, prefix)
    replace_file(draft.config, text.encode())


def without_prefix(text: str, prefix: str) -> str:
    """Remove ``prefix`` where a path begins with it."""
    return re.sub(rf"(?<![\w./-]){re.escape(prefix)}", "", text) if isinstance(text, str) else text


def _shorten_config(connection: sqlite3.Connection, prefix: str) -> None:
    """Remove ``prefix`` from the configuration to which the first event refers by digest."""
    found = connection.execute(
        "SELECT digest, compressed FROM event JOIN blob ON digest = json_extract(json, '$.config') "
        "WHERE kind = 'session_created'"
    ).fetchone()
    if found is None:
        return
    before, compressed = found
    text = without_prefix(zlib.decompress(compressed).decode(), prefix).encode()
    after = hashlib.sha256(text).hexdigest()
    new = (after, zlib.compress(text), before)
    connection.execute("UPDATE blob SET digest = ?, compressed = ? WHERE digest = ?", new)
    connection.execute("UPDATE event SET json = replace(json, ?, ?) WHERE kind = 'session_created'", (before, after))
