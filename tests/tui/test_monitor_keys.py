"""Every key of the monitor has its documented effect, tested here or in a test marked ``keys``."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.binding import Binding

import tui
from benchmarks.synthetic_session import Shape, write_session
from engine.daemon.launch import EngineStart, spawn_engine
from engine.session.records import events as ev
from engine.session.records import requests as requests
from engine.session.store import EngineLock, EventWriter, SessionError, SessionPaths, SessionReader, engine_liveness
from tests.patience import TRIES
from tests.tui.conftest import NOW, SMALL, Engine, Monitor, monitor_of
from tui.monitor.app import MonitorApp
from tui.monitor.replay import ReplayApp, ReplaySource
from tui.monitor.screens.budget import BudgetScreen
from tui.monitor.screens.picker import PickerApp
from tui.monitor.settings import Settings, load_settings
from tui.view.source import SessionSource

QUIET = Settings(notify="off")


def bound_keys() -> set[tuple[str, str]]:
    """Return every (class, key) that a class of the monitor binds."""
    found = set()
    for module in pkgutil.walk_packages(tui.__path__, "tui."):
        for name, thing in vars(importlib.import_module(module.name)).items():
            if inspect.isclass(thing) and thing.__module__ == module.name:
                for binding in vars(thing).get("BINDINGS", ()):
                    keys = binding.key if isinstance(binding, Binding) else binding[0]
                    found |= {(name, key) for key in keys.split(",")}
    return found


def keys_declared() -> set[tuple[str, str]]:
    """Return every (class, key) that a test of this folder declares: ``@pytest.mark.keys("SearchTree", "j", "k")``."""
    found = set()
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.keys":
                where, *keys = (ast.literal_eval(argument) for argument in node.args)
                found |= {(where, key) for key in keys}
    return found


def test_every_key_has_a_test_that_declares_it() -> None:
    bound, tested = bound_keys(), keys_declared()
    assert len(bound) > 100
    untested, unbound = sorted(bound - tested), sorted(tested - bound)
    assert not untested, f'no test has the mark @pytest.mark.keys("class", "key") for: {untested}'
    assert not unbound, f"declared by a test, but no class binds: {unbound}"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Write a session with a long log for all tests of this file, and act as its engine."""
    paths = write_session(tmp_path_factory.mktemp("keys"), "keys", SMALL, end=NOW)
    lock, writer = EngineLock(paths), EventWriter(paths)
    found = Engine(paths, lock, writer)
    found.record(*(ev.LogLine(level="info", text=f"line {number} {'words ' * 60}") for number in range(120)))
    yield found
    writer.close()
    lock.release()


@pytest.mark.keys("SearchTree", "pageup", "pagedown", "ctrl+b", "ctrl+f", "left", "right")
async def test_the_tree_is_paged_and_folded(live: Engine) -> None:
    async with monitor_of(live.paths) as monitor:
        tree = monitor.app.monitor_screen.tree_view
        await monitor.press("asterisk", "asterisk")
        page = tree.size.height - 1
        for key, place in (("pagedown", page), ("ctrl+f", 2 * page), ("pageup", page), ("ctrl+b", 0)):
            await monitor.press(key)
            assert tree.cursor == place, key
        await monitor.press("left")
        assert tree.row is not None and tree.row.folded
        await monitor.press("right")
        assert tree.row.folded is False
        await monitor.press("right")
        assert monitor.row() == "softmax/r0"


@pytest.mark.keys("LineWidget", "up", "k", "down", "j", "pageup", "ctrl+b", "pagedown", "ctrl+f", "space")
@pytest.mark.keys("LineWidget", "home", "g", "end", "G", "left", "h", "right", "l")
async def test_a_pane_of_lines_is_scrolled(live: Engine) -> None:
    async with monitor_of(live.paths, (80, 24)) as monitor:
        monitor.app.animation_level = "none"
        await monitor.press("5")
        view = monitor.app.monitor_screen.log_view
        await monitor.until(lambda: view.size.height > 10 and view.scroll_offset.y == view.max_scroll_y, "its end")
        page, end = view.size.height, view.max_scroll_y
        assert end > 3 * page
        for key, x, y in (
            ("g", 0, 0), ("down", 0, 1), ("j", 0, 2), ("up", 0, 1), ("k", 0, 0),
            ("pagedown", 0, page), ("ctrl+f", 0, 2 * page), ("space", 0, 3 * page),
            ("pageup", 0, 2 * page), ("ctrl+b", 0, page), ("home", 0, 0), ("end", 0, end), ("home", 0, 0),
            ("G", 0, end),
        ):  # fmt: skip
            await monitor.press(key)
            await monitor.until(lambda x=x, y=y: view.scroll_offset == (x, y), f"{key}: {x}, {y}")
    async with monitor_of(live.paths) as monitor:  # lines wrap only when zoomed
        monitor.app.animation_level = "none"
        await monitor.press("5")
        view = monitor.app.monitor_screen.log_view
        await monitor.until(lambda: view.max_scroll_x > 2, "a line longer than the pane")
        far = min(16, int(view.max_scroll_x))
        for key, x in (("right", min(8, far)), ("l", far), ("left", far - 8), ("h", max(far - 16, 0))):
            x = max(x, 0)
            await monitor.press(key)
            await monitor.until(lambda x=x: view.scroll_offset.x == x, f"{key}: {x}")


@pytest.mark.keys("DetailView", "left", "h", "right", "l", "less_than_sign", "greater_than_sign")
async def test_the_detail_turns_its_tabs_and_scrolls_sideways(live: Engine) -> None:
    async with monitor_of(live.paths, (80, 24)) as monitor:
        monitor.app.animation_level = "none"
        await monitor.press("B", "enter")
        detail = monitor.app.monitor_screen.detail
        assert detail.tab == "Kernel"
        for key, x in (("greater_than_sign", 8), ("greater_than_sign", 16), ("less_than_sign", 8)):
            await monitor.press(key)
            await monitor.until(lambda x=x: detail.view.scroll_offset.x == x, f"{key}: {x}")
        for key, tab in (("right", "Diff"), ("l", "Evidence"), ("h", "Diff"), ("left", "Kernel")):
            await monitor.press(key)
            assert detail.tab == tab, key


@pytest.mark.keys("FilterBar", "escape")
async def test_esc_in_the_filter_drops_it(live: Engine) -> None:
    async with monitor_of(live.paths) as monitor:
        view = monitor.app.monitor_screen.tree_rows.view
        await monitor.press("slash")
        await monitor.type("cheating")
        assert view.filter == "cheating"
        await monitor.press("escape")
        assert view.filter == "" and not monitor.app.screen.query("FilterBar")
        assert monitor.app.monitor_screen.focused is monitor.app.monitor_screen.tree_view


@pytest.mark.keys("ConfirmScreen", "n", "N", "escape", "q", "enter")
@pytest.mark.keys("HelpScreen", "escape", "question_mark", "q", "enter")
@pytest.mark.keys("BudgetScreen", "escape")
@pytest.mark.keys("SeedKernelScreen", "escape")
@pytest.mark.keys("SeedIdeaScreen", "escape")
async def test_dialogs_are_left_and_nothing_is_sent(live: Engine) -> None:
    before = live.commands()
    async with monitor_of(live.paths) as monitor:
        await monitor.press("B")
        for opens, title, keys in (
            ("d", "Prune v", ("n", "N", "escape", "q", "enter")),
            ("question_mark", "Most used keys", ("escape", "question_mark", "q", "enter")),
            ("M", "Minutes of all engine runs", ("escape",)),
            ("a", "Seed a CUDA C++ kernel for softmax", ("escape",)),
            ("i", "Seed an idea for softmax", ("escape",)),
        ):
            for key in keys:
                await monitor.press(opens)
                await monitor.until_shown(title)
                await monitor.press(key)
                assert len(monitor.app.screen_stack) == 1, f"{title}: {key}"
        await monitor.pilot.pause(0.2)
    assert live.commands() == before


@pytest.mark.keys("AlertsScreen", "ctrl+s")
async def test_ctrl_s_keeps_how_news_reach_a_person(live: Engine) -> None:
    async with monitor_of(live.paths) as monitor:
        await monitor.press("A", "home", "tab")
        await monitor.type("say")
        await monitor.press("ctrl+s")
        await monitor.until_shown("The monitor will send alerts this way for every session")
        assert load_settings() == Settings(notify="bell", command="say") == monitor.app.settings


@pytest.mark.keys("SeedKernelScreen", "ctrl+e")
async def test_a_kernel_is_seeded_from_the_editor(
    live: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "// from the editor" >> "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    before = len(live.commands())
    async with monitor_of(live.paths) as monitor:
        await monitor.press("a", "ctrl+e")
        await monitor.until(lambda: len(live.commands()) > before, "the command")
        command = live.commands()[-1]
        assert isinstance(command, requests.SeedKernel) and command.parent is None
        assert command.source.endswith("// from the editor\n") and "launch(" in command.source


@pytest.mark.keys("MonitorApp", "ctrl+c", "ctrl+q")
async def test_ctrl_c_says_what_leaves_and_ctrl_q_does(live: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with monitor_of(live.paths) as monitor:
        sent: list[str] = []
        monkeypatch.setattr(monitor.app, "write_sequence", sent.append)
        await monitor.press("B", "ctrl+c")
        await monitor.until_shown("Press q to close the monitor (the search continues)")
        assert not [text for text in sent if text.startswith("\x1b]52;c;")]
        await monitor.press("ctrl+q")
        await monitor.until(lambda: monitor.app.return_value == 0, "it ends")
    assert engine_liveness(live.paths).running


async def test_cutting_nothing_in_a_field_leaves_the_clipboard_alone(
    live: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with monitor_of(live.paths) as monitor:
        written: list[str] = []
        await monitor.press("slash")
        monkeypatch.setattr(monitor.app._driver, "write", written.append)
        await monitor.press("ctrl+x")
        assert not [text for text in written if "\x1b]52" in text]
        await monitor.type("ab")
        await monitor.press("shift+home", "ctrl+x")
        assert written[-1] == "\x1b]52;c;YWI=\x07"


async def stopped_session(directory: Path, name: str, *events: ev.AnyEvent) -> SessionPaths:
    """Write a session whose search the user stopped early."""
    paths = write_session(directory, name, Shape(variants=8, problems=1, rounds=1, flying=0), ended=True)
    writer = EventWriter(paths)
    for event in (*events, ev.EngineStopped(reason="stopped", message="stopped")):
        await writer.record(event)
    writer.close()
    return paths


@pytest.mark.keys("MonitorScreen", "R")
async def test_r_says_that_a_search_is_finished(tmp_path: Path) -> None:
    paths = write_session(tmp_path, "done", Shape(variants=8, problems=1, rounds=1, flying=0), ended=True)
    app = MonitorApp(SessionSource(paths), start_engine=lambda: pytest.fail("nothing is left to do"), settings=QUIET)
    async with app.run_test(size=(120, 40)) as pilot:
        monitor = Monitor(app, pilot)
        await monitor.until(lambda: app.model.opened and app.model.link.kind == "ended", "the session is open")
        assert "R resume engine" not in monitor.text()
        await monitor.press("R")
        await monitor.until_shown("The search is complete: all rounds are done.")


@pytest.mark.keys("MonitorScreen", "R")
async def test_r_starts_an_engine_on_a_session_that_has_none(tmp_path: Path) -> None:
    """Start a real engine. The session's configuration has no problem, so the engine ends and says so."""
    paths = await stopped_session(tmp_path, "left")
    starts: list[EngineStart] = []

    def start_engine() -> EngineStart:
        starts.append(spawn_engine(paths))
        return starts[-1]

    source = SessionSource(paths, starting=lambda: any(start.under_way for start in starts))
    app = MonitorApp(source, start_engine=start_engine, settings=QUIET, ascii_only=False)
    async with app.run_test(size=(120, 40)) as pilot:
        monitor = Monitor(app, pilot)
        await monitor.until(lambda: app.model.opened and app.model.link.kind == "ended", "the session is open")
        await monitor.press("R")
        await monitor.until(lambda: bool(starts), "the engine's process")
        # On a busy machine it may end before the first screen.
        await monitor.until(lambda: app.model.link.kind == "starting" or not starts[0].under_way, "its start is seen")
        if app.model.link.kind == "starting":
            assert "starting" in monitor.text().splitlines()[0]
            await monitor.press("R")
            assert len(starts) == 1, "one at a time"
        await monitor.until(lambda: not starts[0].under_way and app.model.engine == "stopped", "it ends")
        await monitor.until_shown("ENGINE FAILED (error). Press R to resume.")
    with SessionReader(paths) as reader:
        events = [one.event for one in reader.read()]
    assert [type(one) for one in events[-2:]] == [ev.EngineStarted, ev.EngineStopped]
    assert starts[0].poll() == events[-2].pid  # type: ignore[union-attr]


@pytest.mark.keys("MonitorScreen", "R")
async def test_r_asks_for_minutes_where_all_are_spent(tmp_path: Path) -> None:
    paths = await stopped_session(tmp_path, "spent", ev.BudgetChanged(minutes=0.01))
    app = MonitorApp(SessionSource(paths), start_engine=lambda: pytest.fail("it would end at once"), settings=QUIET)
    async with app.run_test(size=(120, 40)) as pilot:
        monitor = Monitor(app, pilot)
        await monitor.until(lambda: app.model.opened and app.model.link.kind == "ended", "the session is open")
        await monitor.press("R")
        await monitor.until(lambda: isinstance(app.screen, BudgetScreen), "it asks")


async def test_limits_that_leave_a_stopped_search_no_time_are_refused_and_others_start_it(tmp_path: Path) -> None:
    paths = await stopped_session(tmp_path, "spent", ev.BudgetChanged(minutes=0.02))
    starts: list[bool] = []

    def start_engine() -> EngineStart:
        starts.append(True)
        raise SessionError("this test starts no engine", paths.directory)

    app = MonitorApp(SessionSource(paths), start_engine=start_engine, settings=QUIET)
    async with app.run_test(size=(120, 40)) as pilot:
        monitor = Monitor(app, pilot)
        await monitor.until(lambda: app.model.opened and app.model.link.kind == "ended", "the session is open")
        await monitor.press("M")
        await monitor.until_shown("The search has stopped. Changing a limit resumes it.")
        await monitor.type("0.01")  # the previous content is selected
        await monitor.press("enter")
        await monitor.until_shown("0.01 min allowed")
        assert "the search stays stopped" in monitor.text()
        await monitor.press("tab", "7", "enter")
        assert isinstance(app.screen, BudgetScreen) and not starts
        await monitor.press("shift+tab")
        await monitor.type("30")
        await monitor.press("enter")
        await monitor.until(lambda: bool(starts), "the start")
    with SessionReader(paths) as reader:
        assert [sent.command for sent in reader.commands()] == [requests.ChangeBudget(minutes=30.0, rounds=7)]


@pytest.mark.keys("ReplayApp", "less_than_sign")
async def test_a_replay_is_played_slower(live: Engine) -> None:
    app = ReplayApp(ReplaySource(live.paths, 20.0), settings=QUIET, ascii_only=False)
    async with app.run_test(size=(120, 40)) as pilot:
        monitor = Monitor(app, pilot)
        await monitor.press("less_than_sign")
        assert app.clock.speed == 10.0
        await monitor.until_shown("Speed 10x")


@pytest.mark.keys("PickerApp", "j", "k", "q")
async def test_the_picker_is_moved_in_and_left(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_session(tmp_path, name, Shape(variants=4, problems=1, rounds=1), ended=True)
    app = PickerApp(tmp_path, settings=QUIET)
    async with app.run_test(size=(100, 20)) as pilot:
        choices: Any = app.query_one("#sessions")
        for _ in range(TRIES):
            if choices.option_count == 2 and choices.highlighted == 0:
                break
            await asyncio.sleep(0.05)
        for key, place in (("j", 1), ("k", 0)):
            await pilot.press(key)
            assert choices.highlighted == place, key
        await pilot.press("q")
        await pilot.pause(0.1)
        assert not app.is_running
    assert app.return_value is None


@pytest.mark.keys("PickerApp", "question_mark", "escape")
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("ascii_only", [False, True])
async def test_the_picker_shows_help_and_esc_does_not_quit(tmp_path: Path, ascii_only: bool, width: int) -> None:
    app = PickerApp(tmp_path, settings=Settings(notify="off", ascii_glyphs=ascii_only))

    def shown() -> str:
        return "\n".join(strip.text for strip in app.screen._compositor.render_strips())

    async with app.run_test(size=(width, 24)) as pilot:
        assert "? help" in shown()
        for close in ("question_mark", "escape"):
            await pilot.press("question_mark")
            await pilot.pause(0.1)
            assert "compare it with the selected session" in shown()
            assert "close this help" in shown() and (shown().isascii() or not ascii_only)
            await pilot.press(close)
            await pilot.pause(0.1)
            assert "close this help" not in shown()
        await pilot.press("escape")
        await pilot.pause(0.1)
        assert app.is_running and "Press q to quit." in shown()
