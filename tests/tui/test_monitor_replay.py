"""Replay, screens as text, and the session picker."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path

import pytest
from textual.widgets import OptionList

from benchmarks.synthetic_session import Shape, write_session
from engine.session.store import SessionPaths
from tests.commandline import ROOT
from tests.patience import TRIES
from tui.monitor.replay import Clock, ReplayApp, ReplaySource, shorten_gaps
from tui.monitor.screens.picker import PickerApp
from tui.monitor.settings import Settings
from tui.monitor.snapshot import render_once, screen_text
from tui.text.format import clock as clock_words

QUIET = Settings(notify="off")


def test_long_gaps_are_cut() -> None:
    assert shorten_gaps([0.0, 1.0, 100.0, 102.0]) == [0.0, 0.0, 94.0, 94.0]


def test_the_clock_holds_seeks_and_stops_at_the_end() -> None:
    clock = Clock(100.0, 200.0, 1000.0)
    clock.pause(True)
    at = clock.now()
    assert clock.now() == at
    clock.seek(150.0)
    assert clock.now() == 150.0
    clock.seek(500.0)
    assert clock.now() == 200.0
    clock.seek(-1.0)
    assert clock.now() == 100.0


async def test_the_clock_of_a_replay_is_the_recordings_though_gaps_are_cut(session: SessionPaths) -> None:
    with sqlite3.connect(session.database) as db:  # the engine slept for an hour in the middle
        (middle,) = db.execute("SELECT max(seq) / 2 FROM event").fetchone()
        db.execute("UPDATE event SET time = time + 3600 WHERE seq > ?", (middle,))
        (begun, ended) = db.execute("SELECT min(time), max(time) FROM event").fetchone()
    db.close()
    source = ReplaySource(session, speed=1.0)
    app = ReplayApp(source, settings=QUIET, ascii_only=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("space")
        await pilot.pause(0.2)
        assert re.search(rf"0:0\d/{clock_words(ended - begun)} paused", screen_text(app))
        source.clock.seek(source.clock.now() + 10_000)
        await pilot.pause(1.2)
        assert f"{clock_words(ended - begun)}/{clock_words(ended - begun)} the end" in screen_text(app)
        assert ended - begun > 3600 > source.clock.span_s
        moments = re.findall(r"^ (\d\d:\d\d:\d\d) ", screen_text(app), re.MULTILINE)
        gap_s = ended - begun - source.clock.span_s
        told = time.localtime(app.model.story.lines[-1].time + gap_s)
        assert moments[-1] == time.strftime("%H:%M:%S", told), "the log's too"


async def test_a_gap_that_is_cut_is_said_when_it_is_played_over(session: SessionPaths) -> None:
    with sqlite3.connect(session.database) as db:
        (middle,) = db.execute("SELECT max(seq) / 2 FROM event").fetchone()
        db.execute("UPDATE event SET time = time + 7 * 3600 + 12 * 60 WHERE seq > ?", (middle,))
    db.close()
    app = ReplayApp(ReplaySource(session, speed=100.0), settings=QUIET, ascii_only=False)
    async with app.run_test(size=(120, 40)) as pilot:
        for _ in range(TRIES):
            await pilot.pause(0.05)
            if "Skipped 7 h 12 m without events." in screen_text(app):
                break
        else:
            raise AssertionError(screen_text(app))
        await pilot.press("0", "space")
        await pilot.pause(0.3)
        assert "Skipped" not in screen_text(app), "who seeks knows"


async def test_a_replay_says_that_it_is_at_its_end() -> None:
    source = ReplaySource(SessionPaths(Path(__file__).parents[2] / "sessions" / "by-hand"), speed=1.0)
    app = ReplayApp(source, settings=QUIET, ascii_only=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("space")
        source.clock.seek(source.clock.now() + 100_000)
        await pilot.pause(1.2)
        first, second, *_ = screen_text(app).splitlines()
        assert "The recording ends here (finished)" in second
        assert "the end (0 restarts)" in first and "paused" not in first
        await pilot.press("0")
        await pilot.pause(0.3)
        assert "the end" not in screen_text(app).splitlines()[0]


async def test_a_replay_tells_where_the_engine_waited_from_where_it_ended() -> None:
    source = ReplaySource(SessionPaths(Path(__file__).parents[2] / "sessions" / "by-hand"), speed=1.0)
    app = ReplayApp(source, settings=QUIET, ascii_only=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("space", "0")
        for _ in range(12):  # its first engine ran for 11 seconds
            source.clock.seek(source.clock.now() + 1)
            await pilot.pause(0.1)
        second = screen_text(app).splitlines()[1]
        assert "The engine stopped here to wait for replies by hand, and a later engine resumed the search" in second
        source.clock.seek(source.clock.now() + 100_000)
        await pilot.pause(1.2)
        assert "The recording ends here (finished)" in screen_text(app).splitlines()[1]


@pytest.mark.keys("ReplayApp", "space", "0", "full_stop", "comma", "greater_than_sign")
async def test_a_replay_shows_the_session_grow_and_can_go_back(session: SessionPaths) -> None:
    source = ReplaySource(session, speed=1.0)
    app = ReplayApp(source, settings=QUIET, ascii_only=False)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:

        async def wait(count: int) -> None:
            for _ in range(TRIES):
                await pilot.pause(0.05)
                if len(app.model.state.variants) == count:
                    return
            raise AssertionError(f"{len(app.model.state.variants)} kernels, not {count}")

        await pilot.press("space")
        assert source.clock.paused
        source.clock.seek(source.clock.now() + 10_000)
        await wait(60)
        await pilot.press("0")
        await wait(0)
        for _ in range(10):
            await pilot.press("full_stop")
        await pilot.pause(0.5)
        some = len(app.model.state.variants)
        assert 0 < some < 60
        await pilot.press("comma", "comma", "comma")
        await pilot.pause(0.5)
        assert len(app.model.state.variants) < some
        await pilot.press("greater_than_sign")
        assert source.clock.speed == 2.0
        await pilot.press("space")
        assert not source.clock.paused
        await pilot.press("P")
        await pilot.pause(0.2)
        assert "read-only" in screen_text(app)


def test_one_screen_as_text(tmp_path: Path) -> None:
    paths = write_session(tmp_path, "done", Shape(variants=40, problems=2, rounds=3), ended=True)
    text = render_once(paths, 80, 24)
    assert len(text.splitlines()) == 24
    assert "finished" in text and "softmax" in text and "\x1b" not in text


@pytest.mark.keys("PickerApp", "j")
async def test_the_picker_lists_sessions_and_returns_the_chosen_one(tmp_path: Path) -> None:
    write_session(tmp_path, "old", Shape(variants=20, problems=1, rounds=2), end=1_700_000_000.0, ended=True)
    write_session(tmp_path, "new", Shape(variants=20, problems=1, rounds=2), ended=True)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "session.db").write_text("not a database [red]")
    app = PickerApp(tmp_path, settings=QUIET)
    async with app.run_test(size=(100, 20)) as pilot:
        await pilot.pause(0.5)
        text = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        assert text.index("new") < text.index("old") < text.index("unreadable")
        await pilot.press("j", "enter")
    assert app.return_value == tmp_path / "old"


async def test_the_picker_calls_bundled_sessions_examples() -> None:
    app = PickerApp(ROOT / "sessions", settings=QUIET)
    async with app.run_test(size=(120, 30)) as pilot:
        for _ in range(TRIES):
            if app.query_one("#sessions", OptionList).option_count > 1:
                break
            await pilot.pause(0.05)
        shown = {line.split()[1]: line.split()[0] for line in screen_text(app).splitlines() if " verdicts" in line}
    assert shown["by-hand"] == shown["headline-h200"] == shown["kernelbench-level1"] == "example"
