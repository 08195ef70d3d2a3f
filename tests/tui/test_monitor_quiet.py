"""Screens show no keys without effect, no device load of an ended session, and no untested claims."""

from __future__ import annotations

from typing import Any

import pytest
from textual.color import Color

from engine.session.records import events as ev
from engine.session.records.other_sizes import AtSizes
from engine.session.store import SessionPaths
from tests.tui.conftest import Engine, Monitor
from tui.monitor.delay import after


def keys(monitor: Monitor) -> str:
    return monitor.text().splitlines()[-1]


async def test_a_dialog_leaves_no_keys_of_the_monitor_below_it(open_monitor: Any, engine: Engine) -> None:
    async with open_monitor(engine.paths) as monitor:
        assert "seed idea" in keys(monitor)
        await monitor.press("M")
        await monitor.until_shown("Rounds per problem")
        assert not any(key in monitor.text() for key in ("seed idea", "q detach", "? help"))
        await monitor.press("escape")
        await monitor.until(lambda: "seed idea" in keys(monitor), "the keys are back")


async def test_keys_that_do_nothing_here_are_not_shown(
    open_monitor: Any, engine: Engine, session: SessionPaths
) -> None:
    async with open_monitor(engine.paths, (200, 60)) as monitor:
        assert "undo" not in keys(monitor), "nothing was done yet"
        await monitor.press("B", "b")
        await monitor.until(lambda: bool(engine.commands()), "it is sent")
        engine.answer(ev.NodePinned(node=engine.commands()[0].node))  # type: ignore[union-attr]
        await monitor.until(lambda: "done" in keys(monitor), "the answer")
        await monitor.pilot.pause(1.1)
        await monitor.press("j")
        assert "z undo" in keys(monitor), "a key ends a word that was read"
    engine.lock.release()
    async with open_monitor(session, (200, 60), read_only=True) as monitor:
        shown = keys(monitor)
        assert "/ filter" in shown and "q detach" in shown
        for key in ("seed idea", "undo", "resume engine", "budget", "follow best"):
            assert key not in shown
        await monitor.press("enter")
        assert "tabs" in keys(monitor) and "edit" not in keys(monitor) and "judge again" not in keys(monitor)


async def test_a_finished_search_says_what_goes_on(open_monitor: Any, engine: Engine) -> None:
    engine.record(ev.EngineStopped(reason="finished", message="done"))
    engine.lock.release()
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("d")
        await monitor.until_shown("no engine can prune or restore. Press M to allow more rounds")
        await monitor.press("a")
        await monitor.until_shown("no engine can judge a new kernel")


async def test_last_readings_are_not_taken_for_live_ones(open_monitor: Any, engine: Engine) -> None:
    async with open_monitor(engine.paths) as monitor:
        devices = monitor.app.monitor_screen.devices
        await monitor.until(lambda: len(devices.lines) > 1 and "% " in devices.lines[1].text, "a load")
        load = devices.lines[1]
        assert "last " not in monitor.text() and set(load.text) & set("▁▂▃▄▅▆▇")
        assert any(segment.style == devices.palette.running for segment in load)
        engine.record(ev.EngineStopped(reason="finished", message="done"))
        engine.lock.release()
        await monitor.until_shown("the engine is not running")
        loads = devices.lines[1]
        assert "last " in loads.text and not set(loads.text) & set("▁▂▃▄▅▆▇█")
        assert {segment.style for segment in loads if segment.text.strip()} == {devices.palette.dim}


async def test_the_log_says_that_the_engine_died(open_monitor: Any, engine: Engine) -> None:
    async with open_monitor(engine.paths) as monitor:
        pid = monitor.app.model.state.engine.pid
        engine.lock.release()
        await monitor.until_shown("ENGINE DIED")
        await monitor.until_shown(f"the engine died (pid {pid})")
        assert "last readings at " in monitor.text()
        started = ev.EngineStarted(pid=pid + 1, host="here", version="1", resumed=True, devices=(), sandbox="")
        engine.record(started)
        await monitor.until_shown(f"the engine started again (pid {pid + 1})")
        texts = [line.text for line in monitor.app.model.story.lines]
        assert texts[-2] == f"the engine died (pid {pid})"


@pytest.mark.parametrize("right", [False, True])
async def test_a_kernel_for_the_searched_sizes_only_is_marked(open_monitor: Any, engine: Engine, right: bool) -> None:
    failed = AtSizes("smaller", {"N": 3}, "x (3, 3)", "wrong", reason="zeros")
    passed = AtSizes("larger", {"N": 9}, "x (9, 9)", "correct", kernel_ms=1.0, eager_ms=2.0, speedup=2.0)
    async with open_monitor(engine.paths, (200, 60)) as monitor:
        best = monitor.app.model.state.problems["softmax"].best
        results = (failed, passed) if right else (failed,)
        engine.record(ev.SizesChecked(problem="softmax", variant=best, results=results))
        await monitor.until(lambda: monitor.app.model.state.variants[best].at_sizes is not None, "they were tried")
        await monitor.press("B")
        await monitor.until_shown("at other sizes")
        shown = monitor.text()
        assert ("correct  correct only at the searched sizes" in shown) is not right
        assert ("these sizes only" in shown, "!sizes" in shown) == (not right, not right), "tree, leaders"


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
async def test_what_is_faint_can_be_read(open_monitor: Any, session: SessionPaths, theme: str) -> None:
    async with open_monitor(session) as monitor:
        monitor.app.theme = theme
        background = Color.parse(monitor.app.get_css_variables()["background"])
        faint = monitor.app.monitor_screen.devices.palette.dim.color
        assert faint is not None
        lightest, darkest = sorted((luminance(Color.from_rich_color(faint)), luminance(background)), reverse=True)
        assert (lightest + 0.05) / (darkest + 0.05) >= 4.5, "the least of WCAG for text"


def luminance(color: Color) -> float:
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


async def test_what_is_to_be_done_in_a_microsecond_is_done(open_monitor: Any, engine: Engine) -> None:
    """A Textual timer would permanently stop the polling of the session."""
    async with open_monitor(engine.paths) as monitor:
        done: list[int] = []
        for number in range(100):
            after(monitor.app, 1e-9, lambda number=number: done.append(number))  # type: ignore[misc]
        await monitor.until(lambda: len(done) == 100, "all of them")
        cancelled = after(monitor.app, 0.01, lambda: done.clear())
        cancelled.cancel()
        await monitor.pilot.pause(0.05)
        assert len(done) == 100
