"""The directory of sessions: make one, find one, list them all."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import sqlite3
import time
import zlib
from pathlib import Path
from typing import Literal

from msgspec import Struct

from engine import __version__
from engine.budget import elapsed_s
from engine.events import SessionCreated, encode, kind_of
from engine.factor import marked, speedup
from engine.near import did_you_mean
from engine.session.database import connect_engine, create, must_be_files, write_turn
from engine.session.errors import SessionError, SessionMissing, StorageError, of_os, of_sqlite
from engine.session.filesystem import check_file_system
from engine.session.lock import Liveness, engine_liveness
from engine.session.paths import SessionPaths, replace_file, sync_directory
from engine.session.reader import SessionReader
from engine.state import SessionState, fold

RunState = Literal["new", "running", "finished", "stopped", "died", "unreadable"]
"""``new``: no engine has run yet. ``finished``: the search came to its end. ``stopped``: it was ended before, and can
be resumed. ``died``: the engine ended without a word (killed, out of memory, power loss)."""

_NOT_NEEDED = ("variant_stage", "log_line", "command_handled", "baseline_measured")


class SessionSummary(Struct, frozen=True, kw_only=True):
    """One line of ``kernel-tui sessions``. ``best``: factor over eager per problem that has a correct kernel;
    ``unsure``: the problems where it is hardly known.

    ``created`` is in Unix seconds. ``note`` says why the engine stopped, that it has stalled, or why the session is
    unreadable.
    ``search_s``: seconds of search so far, as its budget counts them; ``minutes``: the limit that a person set after
    the session was created; ``by_budget``: whether a limit ended the last engine.
    """

    name: str
    directory: Path
    state: RunState
    created: float = 0.0
    verdicts: int = 0
    best: dict[str, float] = {}
    unsure: tuple[str, ...] = ()
    pid: int | None = None
    config_name: str = ""
    note: str = ""
    search_s: float = 0.0
    minutes: float | None = None
    by_budget: bool = False

    @property
    def bests(self) -> list[str]:
        """The best factors in words: ``softmax 1.18x``."""
        return [f"{problem} {marked(speedup(factor), problem in self.unsure)}" for problem, factor in self.best.items()]


def create_session(root: Path, name: str, config_text: str, config_name: str, seed: int) -> SessionPaths:
    """Make ``root/name`` (``name-2``, ... if taken) with the frozen configuration and a database of one event.

    ``config_name`` is the configuration's path as the person would recognise it. Raises SessionError and leaves
    nothing behind: no space, read-only directory, unsafe file system.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # a file system that takes no directories, such as /proc
        raise StorageError(f"{root}: cannot be made; choose another directory for sessions", root) from error
    except OSError as error:
        raise of_os(error, root) from error
    check_file_system(root)
    paths = _claim_directory(root.absolute(), re.sub(r"[^\w.-]+", "-", name).strip(".-") or "session")
    try:
        replace_file(paths.config, config_text.encode())
        _make_database(paths, config_text, config_name, seed)
        sync_directory(paths.directory)
        sync_directory(root)
    except (OSError, SessionError) as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(paths.directory)
        raise (of_os(error, paths.directory) if isinstance(error, OSError) else error) from error
    return paths


def find_session(root: Path, name: str) -> SessionPaths:
    """A session by its name below ``root``, or by the path of its directory. Raises SessionMissing, NotASession."""
    for directory in (root / name, Path(name)):
        if (directory / "session.db").exists():
            paths = SessionPaths.at(directory)
            must_be_files(paths)
            return paths
    hint = did_you_mean(name, (file.parent.name for file in root.glob("*/session.db"))) or "."
    lists = "'kernel-tui sessions' lists what there is."
    raise SessionMissing(f"{root / name}: no such session{hint} {lists}", root / name)


def list_sessions(root: Path) -> list[SessionSummary]:
    """All sessions below ``root``, newest first; those that cannot be read are listed with the reason."""
    if not root.is_dir():
        return []
    found = [summarize(SessionPaths.at(file.parent)) for file in root.glob("*/session.db")]
    return sorted(found, key=lambda summary: (-summary.created, summary.name))


def summarize(paths: SessionPaths) -> SessionSummary:
    """One session's summary. Never raises for what the session holds: what is wrong is its ``note``."""
    try:
        with SessionReader(paths) as reader:
            state = fold(reader.read(without=_NOT_NEEDED))
            live = engine_liveness(paths, reader)
            return _summary_of(paths, state, live, reader.config_name())
    except SessionError as error:
        return SessionSummary(name=paths.name, directory=paths.directory, state="unreadable", note=str(error))
    except (LookupError, ArithmeticError, ValueError, TypeError, RecursionError) as error:
        note = f"{paths.database}: what it holds does not go together ({error!r}). The session was altered."
        return SessionSummary(name=paths.name, directory=paths.directory, state="unreadable", note=note)


def _summary_of(paths: SessionPaths, state: SessionState, live: Liveness, config_name: str) -> SessionSummary:
    run_state, note = _run_state(state, live)
    return SessionSummary(
        name=paths.name,
        directory=paths.directory,
        state=run_state,
        created=state.created_at,
        verdicts=state.verdicts,
        best={
            problem.id: factor
            for problem in state.problems.values()
            if problem.best is not None and (factor := state.variants[problem.best].speedup) is not None
        },
        unsure=tuple(
            problem.id
            for problem in state.problems.values()
            if problem.best is not None
            and (verdict := state.variants[problem.best].verdict) is not None
            and verdict.hardly_known
        ),
        pid=live.pid if live.running else None,
        config_name=config_name,
        note=note or live.message,
        search_s=elapsed_s(state, state.time),
        minutes=state.minutes,
        by_budget=state.engine is not None and state.engine.stopped == "budget",
    )


def quick_check(paths: SessionPaths) -> str | None:
    """SQLite's check of the session: None if sound, else what is wrong. Raises SessionError if it cannot be opened."""
    with SessionReader(paths) as reader:
        return reader.quick_check()


def _run_state(state: SessionState, live: Liveness) -> tuple[RunState, str]:
    if live.running:
        return "running", f"STALLED: {live.stall}" if live.stall is not None else ""
    if state.engine is None:
        return "new", ""
    if state.engine.stopped is None:
        return "died", "the engine ended without a word; resume goes on with what was recorded"
    return ("finished" if state.engine.stopped == "finished" else "stopped"), state.engine.message


def _claim_directory(root: Path, name: str) -> SessionPaths:
    """Make the first free of name, name-2, ...; mkdir decides between two who try at once."""
    number = 1
    while True:
        directory = root / (name if number == 1 else f"{name}-{number}")
        try:
            directory.mkdir()
            return SessionPaths(directory)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise of_os(error, root) from error


def _make_database(paths: SessionPaths, config_text: str, config_name: str, seed: int) -> None:
    """Made aside and moved to its place when it is whole: who lists sessions meanwhile reads no half of it, nor holds
    a lock in the way of its first statements."""
    draft = SessionPaths(paths.directory / ".new")
    draft.directory.mkdir()
    create(draft)
    raw = config_text.encode()
    digest = hashlib.sha256(raw).hexdigest()
    _write_first_event(
        draft, SessionCreated(name=paths.name, version=__version__, config=digest, seed=seed), raw, config_name
    )
    draft.database.replace(paths.database)
    shutil.rmtree(draft.directory)


def _write_first_event(paths: SessionPaths, event: SessionCreated, config: bytes, config_name: str) -> None:
    """Committed and out of SQLite's log, so that the database is one file."""
    now = time.time()
    db = connect_engine(paths)
    try:
        with write_turn(paths):
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO about VALUES ('config_name', ?)", (config_name,))
            db.execute("INSERT INTO blob VALUES (?, ?, ?)", (event.config, zlib.compress(config), now))
            db.execute(
                "INSERT INTO event (time, kind, json) VALUES (?, ?, ?)", (now, kind_of(event), encode(event).decode())
            )
            db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise of_sqlite(error, paths.database) from error
    finally:
        db.close()
