"""The status lines show failures in red and normal ends in other colors, and never outdated text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pseudo_terminal import attached
from benchmarks.synthetic_session import CPU, write_session
from engine.problem.spec import ProblemSpec
from engine.session.records import events as ev
from engine.session.records.model_calls import CallSite
from engine.session.records.verdict import Baseline, Standing, Timing, Verdict
from engine.session.state.spend import MANUAL
from engine.session.store import EngineLock, EventWriter, create_session
from tests.tui.conftest import NOW, SMALL, Engine, Monitor, monitor_of


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Engine]:
    """Create a session whose engine has not recorded any event."""
    paths = create_session(tmp_path, "fresh", "# nothing\n", "fresh.toml", 1)
    lock, writer = EngineLock(paths), EventWriter(paths)
    yield Engine(paths, lock, writer)
    writer.close()
    lock.release()


def started() -> ev.EngineStarted:
    return ev.EngineStarted(pid=os.getpid(), host="h", version="0", resumed=False, devices=(CPU,), sandbox="none")


def added(name: str) -> ev.ProblemAdded:
    spec = ProblemSpec(id=name, name=name, path=f"{name}.py", source="", tensors=())
    return ev.ProblemAdded(problem=spec, language="cpp", header="")


def is_alarm(monitor: Monitor) -> bool:
    """Return whether the second status line is drawn as an alarm."""
    status = monitor.app.monitor_screen.status
    return any(segment.style == status.palette.alarm for segment in status.lines[1])


@pytest.mark.parametrize(
    ("reason", "failed"),
    [("finished", False), ("stopped", False), ("budget", False), ("signal", False), ("error", True), (None, True)],
)
async def test_only_failures_are_red(engine: Engine, reason: ev.StopReason | None, failed: bool) -> None:
    if reason is not None:
        engine.record(ev.EngineStopped(reason=reason, message="why"))
    engine.lock.release()
    async with monitor_of(engine.paths) as monitor:
        await monitor.until(lambda: monitor.app.model.link.kind == "ended", "the engine's end")
        assert is_alarm(monitor) == failed
        first = monitor.app.monitor_screen.status.lines[0]
        red = monitor.app.monitor_screen.status.palette.bad
        assert any(segment.style == red for segment in first) == failed


async def test_a_resumed_search_that_only_waits_for_replies_says_so(fresh: Engine) -> None:
    eager = Baseline("eager", Timing(2.0, 2.0, 2.0, 9))
    site = CallSite(problem="softmax", round=0, purpose="ideas", subject="", number=0)
    call = ev.ModelCallStarted(
        call="c1", attempt=1, provider=MANUAL, model="manual", site=site, prompt="0", tokens=0, dollars=None
    )
    fresh.record(
        *(started(), added("softmax"), ev.RoundStarted(problem="softmax", round=0, parents=())),
        *(ev.BaselineMeasured(problem="softmax", baseline=eager), call),
        *(ev.EngineStopped(reason="stopped", message=""), started()),
    )
    async with monitor_of(fresh.paths) as monitor:
        await monitor.until_shown("Waiting for 1 reply")
        assert "again" not in monitor.text().splitlines()[1]


async def test_a_better_speedup_outside_the_runoff_is_dim(engine: Any) -> None:
    async with monitor_of(engine.paths, (200, 60)) as monitor:
        state = monitor.app.model.state
        best = state.problems["softmax"].best
        other, third = [one for one in state.variants_of("softmax") if one.correct and one.id != best][:2]
        assert best is not None
        disturbed = Verdict(status="correct", speedup=9.0, kernel=Timing(90.0, 90.0, 90.0, 9))
        standings = (Standing(best, 1.0, 1.0, 1.0, 1.0, False), Standing(third.id, 1.1, 1.1, 1.05, 1.15, False))
        engine.record(
            *(ev.RunoffFinished(problem="softmax", round=number, standings=standings) for number in range(3)),
            ev.VerdictGiven(variant=other.id, verdict=disturbed),
        )
        await monitor.until_shown("9.00x")
        screen, dim = monitor.app.monitor_screen, monitor.app.monitor_screen.tree_view.palette.dim
        assert screen.tree_view.select(other.id)
        await monitor.pilot.pause(0.3)
        drawn = {"leaders": list(screen.leaders.lines)}
        drawn["tree"] = [screen.tree_view._artist.draw(screen.tree_view.row, 72)]  # type: ignore[union-attr, arg-type]
        for where, lines in drawn.items():
            figures = [segment for line in lines for segment in line if "9.00x" in segment.text]
            assert figures and all(segment.style == dim for segment in figures), where


async def test_clearing_a_filter_without_matches_returns_the_cursor(engine: Any) -> None:
    async with monitor_of(engine.paths) as monitor:
        await monitor.press("B")
        best = monitor.row()
        for clear in (("escape",), ("enter", "escape")):
            await monitor.press("slash", *"zzz")
            await monitor.until_shown("Nothing matches")
            await monitor.press(*clear)
            assert monitor.row() == best


async def test_names_of_problems_are_whole_where_there_is_room(fresh: Engine) -> None:
    names = ["level1_a_name_that_is_longer_than_its_column", "level2_another_long_name_of_a_problem"]
    fresh.record(started(), *(added(name) for name in names))
    async with monitor_of(fresh.paths, (170, 50)) as monitor:
        await monitor.until(lambda: len(monitor.app.model.state.problems) == 2, "the problems")
        await monitor.pilot.pause(0.3)
        shown = [line.text.strip() for line in monitor.app.monitor_screen.scoreboard.lines]
        assert all(name in shown for name in names)


@pytest.mark.keys("MonitorScreen", "ctrl+l")
@pytest.mark.keys("MonitorApp", "ctrl+l")
def test_ctrl_l_paints_the_whole_screen_again(tmp_path: Path) -> None:
    paths = write_session(tmp_path, "small", SMALL, end=NOW)
    with attached(paths.directory) as terminal:
        terminal.wait_for("layernorm")
        terminal.read_for(1.5)
        terminal.forget()
        terminal.type("\x0c")
        for text in ("\x1b[2J", "Tree", "softmax", "layernorm", "detach"):
            terminal.wait_for(text)
