"""A tampered session gets one plain error, never hangs a command, and never hides other sessions."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.synthetic_session import Shape, write_session
from engine.daemon.launch import EngineNotStarted
from engine.exit_codes import ExitCode
from engine.session.records.events import RunoffFinished, encode, kind_of
from engine.session.records.verdict import Standing
from engine.session.state.session_state import fold
from engine.session.store import (
    SessionError,
    SessionPaths,
    SessionReader,
    create_session,
    engine_liveness,
    list_sessions,
)
from engine.session.store.lock import read_holder
from tests.commandline import KernelTui

pytestmark = pytest.mark.timeout(60)

DEEP = "[" * 100_000
NESTED = '{"a":' * 1000


def alter(paths: SessionPaths, script: str, *values: object) -> None:
    with contextlib.closing(sqlite3.connect(paths.database)) as database:
        database.execute(script, values)
        database.commit()


def add_event(paths: SessionPaths, time: float, kind: str, json: str) -> None:
    alter(paths, "INSERT INTO event (time, kind, json) VALUES (?, ?, ?)", time, kind, json)


def unknown_in_a_runoff(paths: SessionPaths) -> None:
    shutil.rmtree(paths.directory)
    write_session(paths.directory.parent, paths.name, Shape(variants=5, problems=1, rounds=1, flying=0))
    with SessionReader(paths) as reader:
        problem = next(iter(fold(reader.read()).problems))
    standing = Standing(variant="v999", median_ms=1.0, ratio=1.0, ratio_low=1.0, ratio_high=1.0, tied=False)
    event = RunoffFinished(problem=problem, round=0, standings=(standing,))
    add_event(paths, 1.8e9, kind_of(event), encode(event).decode())


def at(time: float) -> Callable[[SessionPaths], None]:
    return lambda paths: add_event(paths, time, "problem_finished", '{"kind":"problem_finished","problem":"x"}')


def endless_events(paths: SessionPaths) -> None:
    alter(paths, "ALTER TABLE event RENAME TO past")
    endless = "WITH RECURSIVE n(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM n)"
    alter(paths, f"CREATE VIEW event AS {endless} SELECT seq, 1.0 AS time, '?' AS kind, '{{}}' AS json FROM n")


def as_pipe(name: str) -> Callable[[SessionPaths], None]:
    def replaced(paths: SessionPaths) -> None:
        (paths.directory / name).unlink(missing_ok=True)
        os.mkfifo(paths.directory / name)

    return replaced


def database_as_directory(paths: SessionPaths) -> None:
    for file in paths.directory.glob("session.db*"):
        file.unlink()
    paths.database.mkdir()


ALTERED: dict[str, Callable[[SessionPaths], None]] = {
    "a runoff of nobody": unknown_in_a_runoff,
    "deep json": lambda paths: add_event(paths, 1.0, "runoff_finished", DEEP),
    "a time beyond the calendar": at(1e300),
    "an endless time": at(float("inf")),
    "events without end": endless_events,
    "a trigger": lambda paths: alter(paths, "CREATE TRIGGER t AFTER INSERT ON event BEGIN DELETE FROM event; END"),
    "a version below 0": lambda paths: alter(paths, "PRAGMA user_version = -5"),
    "version 0": lambda paths: alter(paths, "PRAGMA user_version = 0"),
    "a directory as session.db": database_as_directory,
    **{
        f"a pipe as {name}": as_pipe(name)
        for name in ("session.db", "session.db.xz", "session.db-wal", "engine.lock", "config.toml")
    },
}


@pytest.mark.parametrize("what", list(ALTERED))
def test_it_is_unreadable_and_the_others_are_listed(tmp_path: Path, what: str) -> None:
    create_session(tmp_path, "sound", "", "config.toml", 0)
    paths = create_session(tmp_path, "altered", "", "config.toml", 0)
    ALTERED[what](paths)
    states = {one.name: (one.state, one.note) for one in list_sessions(tmp_path)}
    assert states["sound"][0] == "new"
    assert states["altered"][0] == "unreadable"
    assert "altered" in states["altered"][1] or "no session" in states["altered"][1]
    with pytest.raises(SessionError), SessionReader(paths) as reader:
        fold(reader.read())


@pytest.mark.parametrize("content", [b"\xff\xfe" * 50, b'{"host": "\xff"}', NESTED.encode(), DEEP.encode(), b""])
def test_a_lock_that_says_nothing_readable_is_held_by_nobody(tmp_path: Path, content: bytes) -> None:
    paths = create_session(tmp_path, "demo", "", "config.toml", 0)
    paths.lock.write_bytes(content)
    assert read_holder(paths.lock) is None
    assert not engine_liveness(paths).running
    assert [one.state for one in list_sessions(tmp_path)] == ["new"]


@pytest.mark.parametrize(
    "what",
    [
        "a runoff of nobody",
        "a version below 0",
        "events without end",
        "a pipe as config.toml",
        "a directory as session.db",
    ],
)
def test_the_commands_say_it_in_one_line(kernel_tui: KernelTui, tmp_path: Path, what: str) -> None:
    paths = create_session(tmp_path / "sessions", "altered", "", "config.toml", 0)
    ALTERED[what](paths)
    for command in (("show", "altered"), ("attach", "altered", "--once"), ("resume", "altered", "--rounds", "2")):
        ran = kernel_tui(*command)
        assert ran.returncode in (1, 3), ran.stderr
        assert ran.stderr.startswith("Error: ") and ran.stderr.count("\n") == 1, ran.stderr


def test_an_engine_that_could_not_even_write_its_log_is_explained(tmp_path: Path) -> None:
    paths = create_session(tmp_path, "demo", "", "config.toml", 0)
    what = "the engine ended at its start (status 6)"
    assert "the disk is full, over quota or read-only" in str(EngineNotStarted(paths, what, ExitCode.STORAGE))
    paths.log.write_text("no space left to write")
    assert str(EngineNotStarted(paths, what, ExitCode.STORAGE)).endswith(
        "engine.log ends with:\nno space left to write"
    )
