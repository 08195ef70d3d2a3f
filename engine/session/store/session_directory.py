"""Create, find and list sessions in the directory that contains them."""

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
from engine.config.tolerance import SessionTolerance, tolerance_of
from engine.session.budget import elapsed_s
from engine.session.records.events import SessionCreated, StopReason, encode, kind_of
from engine.session.records.speedup_text import marked, speedup
from engine.session.records.verdict_text import is_uncertain
from engine.session.state.session_state import SessionState, fold
from engine.session.store.database import connect_engine, create, must_be_files, write_lock
from engine.session.store.errors import SessionError, SessionMissing, of_os, of_sqlite
from engine.session.store.filesystem import make_root
from engine.session.store.lock import Liveness, engine_liveness
from engine.session.store.paths import SessionPaths, replace_file, sessions_in, sync_directory
from engine.session.store.reader import SessionReader
from engine.session.store.shipped.bundled import bundled_directories, is_bundled
from engine.suggestions import did_you_mean

RunState = Literal["new", "running", "finished", "stopped", "died", "unreadable"]
"""``new``: no engine has run yet. ``finished``: the search is complete. ``stopped``: the search stopped early; resuming
the session continues it. ``died``: the engine ended without recording its end (killed, out of memory, power loss).
"""

STOPPED_WORDS: dict[StopReason, str] = {
    "budget": "budget used",
    "stopped": "stopped",
    "waiting": "awaits replies",
    "error": "failed",
}
"""Names, in lists and in the monitor, of the state of a search whose engine stopped for this reason. For other reasons,
both show the state itself.
"""


def stopped_words(stopped: StopReason | None) -> str:
    """Return the name of the state of a search whose engine stopped for the reason ``stopped``."""
    return "finished" if stopped == "finished" else STOPPED_WORDS.get(stopped or "stopped", "stopped")


_NOT_NEEDED = ("variant_stage", "log_line", "command_handled", "baseline_measured")


class SessionSummary(Struct, frozen=True, kw_only=True):
    """One line of ``kernel-tui sessions``.

    ``best`` maps each problem with a correct kernel to the speedup over eager, and ``uncertain`` lists problems with an
    uncertain speedup. ``tolerance`` applies to all kernels. ``created`` is in Unix seconds. ``note`` says why the
    engine stopped or stalled, or why the session is unreadable. ``search_s`` is the time that counts toward the budget.
    ``minutes`` is the time limit that a person set to replace the config's limit. ``stopped`` is the reason why the
    last engine stopped. ``by_budget``: the last engine stopped because it reached a budget limit. ``paused``: a person
    paused the running search.
    """

    name: str
    directory: Path
    state: RunState
    created: float = 0.0
    verdicts: int = 0
    best: dict[str, float] = {}
    uncertain: tuple[str, ...] = ()
    tolerance: SessionTolerance = None
    pid: int | None = None
    config_name: str = ""
    note: str = ""
    search_s: float = 0.0
    minutes: float | None = None
    stopped: StopReason | None = None
    by_budget: bool = False
    paused: bool = False

    @property
    def is_example(self) -> bool:
        """Whether the session ships with kernel-tui."""
        return is_bundled(SessionPaths.at(self.directory))

    @property
    def state_words(self) -> str:
        """The state as lists show it, such as ``example``, or ``budget used`` if a limit stopped the search.

        The monitor uses the same words.
        """
        if self.is_example:
            return "example"
        if self.state == "running" and self.paused:
            return "paused"
        if self.state == "new":
            return "never ran"
        return stopped_words(self.stopped) if self.state == "stopped" else self.state

    @property
    def bests(self) -> list[str]:
        """Format the best speedups: ``softmax 1.18x``."""
        return [f"{name} {marked(speedup(value), name in self.uncertain)}" for name, value in self.best.items()]


def create_session(root: Path, name: str, config_text: str, config_name: str, seed: int) -> SessionPaths:
    """Create a session in ``root/name`` (``name-2``, ... if taken).

    Args:
        config_text: The frozen configuration.
        config_name: The configuration's path as the person typed it.

    Raises:
        SessionError: The disk is full, the directory is read-only, or the file system is unsafe. No files remain.
    """
    make_root(root)
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
    """Find a session by its name below ``root``, by its directory, or among the bundled sessions.

    Raises SessionMissing, NotASession.
    """
    for directory in (root / name, Path(name), *bundled_directories(name)):
        paths = SessionPaths.at(directory)
        if paths.exists:
            must_be_files(paths)
            return paths
    hint = did_you_mean(name, (directory.name for directory in sessions_in(root))) or "."
    lists = "List the sessions with: kernel-tui sessions"
    raise SessionMissing(f"{root / name}: no such session{hint} {lists}", root / name)


def list_sessions(root: Path) -> list[SessionSummary]:
    """List all sessions below ``root``, newest first, including unreadable sessions with the reason."""
    if not root.is_dir():
        return []
    found = [summarize(SessionPaths.at(directory)) for directory in sessions_in(root)]
    return sorted(found, key=lambda summary: (-summary.created, summary.name))


def summarize(paths: SessionPaths) -> SessionSummary:
    """Summarize a session. Never raise an exception for damaged content: ``note`` then describes the damage."""
    try:
        with SessionReader(paths) as reader:
            state = fold(reader.read(without=_NOT_NEEDED))
            live = engine_liveness(paths, reader)
            tolerance = _tolerance_of(state, reader)
            return _summary_of(paths, state, live, reader.config_name(), tolerance, reader.last_moment(state))
    except SessionError as error:
        return SessionSummary(name=paths.name, directory=paths.directory, state="unreadable", note=str(error))
    except (LookupError, ArithmeticError, ValueError, TypeError, RecursionError) as error:
        note = f"{paths.database}: the session's events contradict each other ({error!r}). Restore a backup."
        return SessionSummary(name=paths.name, directory=paths.directory, state="unreadable", note=note)


def _tolerance_of(state: SessionState, reader: SessionReader) -> SessionTolerance:
    """Return the session's tolerance. Returns None for a damaged configuration, so that the other columns
    still appear.
    """
    try:
        return tolerance_of(state.config, reader.text)
    except SessionError:
        return None


def _summary_of(
    paths: SessionPaths,
    state: SessionState,
    live: Liveness,
    config_name: str,
    tolerance: SessionTolerance,
    last_moment: float,
) -> SessionSummary:
    run_state, note = _run_state(state, live)
    return SessionSummary(
        name=paths.name,
        directory=paths.directory,
        state=run_state,
        created=state.created_at,
        verdicts=state.verdicts,
        best={
            problem.id: value
            for problem in state.problems.values()
            if problem.best is not None and (value := state.variants[problem.best].speedup) is not None
        },
        uncertain=tuple(
            problem.id
            for problem in state.problems.values()
            if problem.best is not None
            and (verdict := state.variants[problem.best].verdict) is not None
            and is_uncertain(verdict)
        ),
        tolerance=tolerance,
        pid=live.pid if live.running else None,
        config_name=config_name,
        note=note if run_state == "finished" else note or live.message,
        search_s=elapsed_s(state, last_moment),
        minutes=state.minutes,
        stopped=state.engine.stopped if state.engine is not None else None,
        by_budget=state.engine is not None and state.engine.stopped == "budget",
        paused=state.paused,
    )


def quick_check(paths: SessionPaths) -> str | None:
    """Run SQLite's integrity check on the session. Returns None if the session is sound, otherwise the errors. Raises
    SessionError.
    """
    with SessionReader(paths) as reader:
        return reader.quick_check()


def _run_state(state: SessionState, live: Liveness) -> tuple[RunState, str]:
    if live.running:
        return "running", f"STALLED: {live.stall}" if live.stall is not None else ""
    if state.engine is None:
        return "new", ""
    if state.engine.stopped is None:
        return "died", "the engine died without a message; resume the session to continue from the recorded events"
    if state.engine.stopped == "finished":
        return "finished", "; ".join(f"{one.problem}: not searched: {one.reason}" for one in state.refused.values())
    return "stopped", state.engine.message


def _claim_directory(root: Path, name: str) -> SessionPaths:
    """Create the first unused directory among name, name-2, and so on. Because ``mkdir`` is atomic, two processes never
    get the same directory.
    """
    number = 1
    while True:
        directory = root / (name if number == 1 else f"{name}-{number}")
        try:
            directory.mkdir()
            return SessionPaths.at(directory)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise of_os(error, root) from error


def _make_database(paths: SessionPaths, config_text: str, config_name: str, seed: int) -> None:
    """Create the database in a temporary directory, and move the complete file into place, so that other processes
    never see or lock a partial database.
    """
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
    """Write the first event, then checkpoint the database into a single file."""
    now = time.time()
    db = connect_engine(paths)
    try:
        with write_lock(paths):
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
