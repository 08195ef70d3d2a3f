"""Keys that compare kernels and sessions, and the screens that they open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic_session import GPU, Shape, write_session
from engine.session.records import events as ev
from engine.session.records.verdict import Timing, Verdict
from engine.session.store import SessionPaths
from tests.patience import TRIES
from tests.tui.conftest import NOW, Engine
from tui.monitor.app import MonitorApp
from tui.monitor.screens.compare import KernelsScreen, SessionsScreen
from tui.monitor.screens.picker import PickerApp
from tui.monitor.settings import Settings
from tui.monitor.snapshot import screen_text

HOSTILE = "\x1b[31mred\x1b]0;title\x07[bold]" + "x" * 3000


def check_grid(name: str, text: str) -> None:
    """Compare the screen with recorded text. ``UPDATE_GRIDS=1`` rewrites the recorded text."""
    file = Path(__file__).parent / "grids" / f"{name}.txt"
    if os.environ.get("UPDATE_GRIDS"):
        file.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == file.read_text(encoding="utf-8")


@pytest.mark.keys("MonitorScreen", "m")
@pytest.mark.parametrize(("ascii_only", "mark"), [(False, "⚑"), (True, "@")])
async def test_a_marked_kernel_has_a_glyph_that_moves_nothing(
    open_monitor: Any, session: SessionPaths, ascii_only: bool, mark: str
) -> None:
    async with open_monitor(session, ascii_only=ascii_only) as monitor:
        assert monitor.app.monitor_screen.tree_view.select("v48")
        await monitor.pilot.pause(0.15)
        row = next(text for text in monitor.text().splitlines() if " v48  " in text[:40])
        place = row.index(" v48  ") - 2
        assert row[place] == " "
        await monitor.press("m")
        await monitor.until_shown(f"{row[:place]}{mark}{row[place + 1 : 50]}")
        await monitor.press("m")
        await monitor.until_shown(row[:50])


@pytest.mark.keys("MonitorScreen", "m", "c")
@pytest.mark.keys("CompareScreen", "escape", "q", "c")
async def test_marked_kernels_are_shown_side_by_side(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        screen = monitor.app.monitor_screen
        for node in ("v48", "v46", "v42"):
            assert screen.tree_view.select(node)
            await monitor.pilot.pause(0.15)
            await monitor.press("m")
        assert "3 marked" in monitor.text()
        for leave in ("escape", "q", "c"):
            await monitor.press("c")
            await monitor.until(lambda: isinstance(monitor.app.screen, KernelsScreen), "the comparison")
            await monitor.until_shown("★ v48")
            assert "● v46" in monitor.text() and "● v42" in monitor.text()
            await monitor.press(leave)
            assert monitor.app.screen is screen, leave
        await monitor.press("m")
        assert screen.tree_view.marked == ("v48", "v46") and screen.detail.marked == "v46"


@pytest.mark.keys("CompareScreen", "f8", "ctrl+z")
async def test_screenshot_and_suspend(
    open_monitor: Any, session: SessionPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    suspended: list[bool] = []
    monkeypatch.setattr(MonitorApp, "action_suspend_process", lambda app: suspended.append(True))
    async with open_monitor(session) as monitor:
        monitor.app.push_screen(KernelsScreen(monitor.app.model, ["v42", "v48"]))
        await monitor.until_shown("speedup")
        await monitor.press("f8")
        await monitor.until_shown("Saved ")
        await monitor.press("ctrl+z")
    assert [file.suffix for file in session.directory.glob("*.svg")] == [".svg"] and suspended == [True]


async def test_without_marks_the_selected_kernel_is_compared_with_the_best(
    open_monitor: Any, session: SessionPaths
) -> None:
    async with open_monitor(session) as monitor:
        assert monitor.app.monitor_screen.tree_view.select("v42")
        await monitor.pilot.pause(0.15)
        await monitor.press("c")
        await monitor.until_shown("v48 is ahead of v42 in separate verdicts")


async def test_esc_clears_the_filter_then_the_marks(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        screen = monitor.app.monitor_screen
        screen.set_filter("v48")
        assert screen.tree_view.select("v48")
        await monitor.pilot.pause(0.15)
        await monitor.press("m", "escape")
        await monitor.until_shown("esc in the tree to clear the marks")
        assert " 1 marked" in monitor.text() and not screen.tree_rows.view.filter
        await monitor.press("escape")
        await monitor.until(lambda: " 1 marked" not in monitor.text(), "no marks")
        assert screen.tree_view.marked == () and screen.detail.marked is None


async def test_a_fifth_mark_is_refused(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        for node in ("v42", "v43", "v44", "v46", "v48"):
            monitor.app.monitor_screen.tree_view.select(node)
            await monitor.pilot.pause(0.15)
            await monitor.press("m")
        await monitor.until_shown("the maximum")
        assert monitor.app.monitor_screen.tree_view.marked == ("v42", "v43", "v44", "v46")


@pytest.mark.keys("KernelsScreen", "D", "tab", "left_square_bracket", "right_square_bracket")
async def test_the_diff_of_two_of_them(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session, (80, 24)) as monitor:
        monitor.app.push_screen(KernelsScreen(monitor.app.model, ["v42", "v46", "v48"]))
        await monitor.until_shown("p10-p90 ms")
        assert "v42 -> v46" not in monitor.text(), "at 24 lines the diff takes turns with the figures"
        await monitor.press("D")
        await monitor.until_shown("v42 -> v46  +")
        assert "p10-p90 ms" not in monitor.text()
        for key, pair in (
            ("right_square_bracket", "v42 -> v48"),
            ("right_square_bracket", "v46 -> v48"),
            ("left_square_bracket", "v42 -> v48"),
        ):
            await monitor.press(key)
            await monitor.until_shown(pair)
        await monitor.press("tab")
        await monitor.until_shown("p10-p90 ms")
        await monitor.press("tab")
        await monitor.until_shown("v42 -> v48")


async def test_kernels_of_different_problems_show_their_diff_only_on_request(
    open_monitor: Any, session: SessionPaths
) -> None:
    async with open_monitor(session, (200, 60)) as monitor:
        variants = monitor.app.model.state.variants
        other = next(one.id for one in variants.values() if one.problem != variants["v48"].problem)
        monitor.app.push_screen(KernelsScreen(monitor.app.model, ["v48", other]))
        await monitor.until_shown("These kernels solve different problems")
        assert f"v48 -> {other}" not in monitor.text()
        await monitor.press("D")
        await monitor.until_shown(f"v48 -> {other}")


async def test_verdicts_that_come_in_are_taken_in(open_monitor: Any, engine: Engine) -> None:
    async with open_monitor(engine.paths) as monitor:
        monitor.app.push_screen(KernelsScreen(monitor.app.model, ["v53", "v57"]))
        await monitor.until_shown("Only v53 is correct.")
        fast = Verdict(status="correct", speedup=9.0, kernel=Timing(0.4, 0.4, 0.4, 9), flags=(HOSTILE,))
        engine.record(ev.VerdictGiven(variant="v57", verdict=fast))
        await monitor.until_shown("9.00x ◂")
        assert "\x1b" not in monitor.text() and "\x07" not in monitor.text()


async def test_kernels_side_by_side_look_the_same(open_monitor: Any, session: SessionPaths) -> None:
    for width, height in ((80, 24), (120, 40), (200, 60)):
        async with open_monitor(session, (width, height)) as monitor:
            monitor.app.push_screen(KernelsScreen(monitor.app.model, ["v48", "v46", "v42", "v47"]))
            await monitor.until_shown("speedup" if width == 80 else "v48 -> v46")
            await monitor.pilot.pause(0.1)
            check_grid(f"kernels-{width}x{height}", monitor.text())


@pytest.mark.keys("PickerApp", "space", "c")
async def test_marked_sessions_are_shown_side_by_side(tmp_path: Path) -> None:
    write_session(tmp_path, "beam", Shape(variants=60, problems=2, rounds=3, flying=0, device=GPU), end=NOW, ended=True)
    other = Shape(variants=40, problems=1, rounds=2, flying=0, device=GPU, seed=5)
    write_session(tmp_path, "greedy", other, end=NOW - 9000.0, ended=True)
    for width, height in ((80, 24), (120, 40)):
        app = PickerApp(tmp_path, settings=Settings(notify="off", ascii_glyphs=False))
        async with app.run_test(size=(width, height)) as pilot:
            await pilot.pause(0.4)
            await pilot.press("c")
            await pilot.pause(0.1)
            assert "Mark at least two sessions" in screen_text(app)
            await pilot.press("space")
            await pilot.pause(0.1)
            assert "1 marked" in screen_text(app) and "+ finished" in screen_text(app)
            await pilot.press("space", "space", "space", "c")
            for _ in range(TRIES):
                await pilot.pause(0.05)
                if isinstance(app.screen, SessionsScreen):
                    break
            await pilot.pause(0.3)
            text = screen_text(app)
            began = next(place for place, line in enumerate(text.splitlines()) if "geomean" in line)
            assert began < 4
            check_grid(f"sessions-{width}x{height}", text)
            await pilot.press("escape")
            await pilot.pause(0.1)
            assert "Sessions in" in screen_text(app)


async def test_sessions_side_by_side_go_on_while_one_of_them_runs(engine: Any, tmp_path: Path) -> None:
    write_session(tmp_path, "other", Shape(variants=20, problems=2, rounds=2, flying=0, device=GPU), ended=True)
    app = PickerApp(tmp_path, settings=Settings(notify="off", ascii_glyphs=False))
    async with app.run_test(size=(120, 40)) as pilot:

        async def until_row(name: str, *words: str) -> None:
            for _ in range(TRIES):
                row = next((line for line in screen_text(app).splitlines() if line.strip().startswith(name)), "")
                if all(word in row for word in words):
                    return
                await pilot.pause(0.05)
            raise AssertionError(f"{name} {words} never came:\n{screen_text(app)}")

        await pilot.pause(0.4)
        await pilot.press("space", "space", "c")
        await until_row("verdicts", "56", "20")
        await until_row("state", "running", "finished")
        engine.record(ev.VerdictGiven(variant="v60", verdict=Verdict(status="wrong", reason="differs")))
        await until_row("verdicts", "57", "20")
        engine.record(ev.EngineStopped(reason="stopped", message="by hand"))
        engine.lock.release()
        await until_row("state", "stopped", "finished")


async def test_a_session_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    write_session(tmp_path, "good", Shape(variants=20, problems=1, rounds=2), ended=True)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "session.db").write_text("not a database [red]")
    app = PickerApp(tmp_path, settings=Settings(notify="off", ascii_glyphs=False))
    async with app.run_test(size=(100, 20)) as pilot:
        await pilot.pause(0.4)
        await pilot.press("space", "space", "c")
        await pilot.pause(0.5)
        assert not isinstance(app.screen, SessionsScreen)
        assert "bad" in screen_text(app).splitlines()[-1]
