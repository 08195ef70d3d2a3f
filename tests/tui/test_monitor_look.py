"""The keys for viewing: move, fold, filter, sort, tabs, diffs, panes, zoom, copy, help, palette, quit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from engine.session.store import SessionPaths
from tui.monitor.panes.lines import LinesView
from tui.monitor.screens.help import help_lines
from tui.monitor.terminal.farewell import parting_words
from tui.monitor.theme.palette import monochrome


@pytest.mark.keys("SearchTree", "j", "down", "k", "up", "l", "h", "home", "G", "g", "end")
async def test_cursor_keys(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        assert monitor.row() == "softmax"
        for key, expected in [
            ("j", "softmax/r0"),
            ("down", "softmax/r1"),
            ("k", "softmax/r0"),
            ("up", "softmax"),
            ("l", "softmax/r0"),
            ("h", "softmax"),
            ("pagedown", None),
            ("home", "softmax"),
            ("G", "v60"),
            ("g", "softmax"),
            ("end", "v60"),
            ("pageup", None),
        ]:
            await monitor.press(key)
            assert expected is None or monitor.row() == expected, key


@pytest.mark.keys("SearchTree", "space", "asterisk")
async def test_fold_and_unfold(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        rows = monitor.app.monitor_screen.tree_rows
        many = len(rows.rows)
        await monitor.press("space")
        assert rows.rows[0].folded and len(rows.rows) < many
        await monitor.press("l")
        assert len(rows.rows) == many
        await monitor.press("h")
        assert rows.rows[0].folded
        await monitor.press("space", "j", "l", "j")
        assert monitor.row() == "i1", "a finished round was unfolded"
        await monitor.press("asterisk")
        assert all(row.folded for row in rows.rows if row.kind == "round")
        await monitor.press("asterisk")
        assert not any(row.folded for row in rows.rows if row.kind == "round")


async def test_the_cursor_stays_when_its_round_finishes_and_folds(open_monitor: Any, engine: Any) -> None:
    from engine.session.records import events as ev

    async with open_monitor(engine.paths) as monitor:
        await monitor.press("B")
        best = monitor.row()
        state = monitor.app.model.state
        assert state.variants[best].round == 2
        engine.record(
            ev.RoundFinished(problem="softmax", round=2, selected=(), dropped=()),
            ev.RoundStarted(problem="softmax", round=3, parents=()),
        )
        await monitor.until_shown("round 3")
        assert monitor.row() == best
        await monitor.press("asterisk")
        assert monitor.row() == "softmax/r2", "folding by hand goes to what is still seen"


@pytest.mark.keys("MonitorScreen", "slash", "n", "N")
async def test_filter_narrows_while_typing_and_esc_drops_it(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        await monitor.press("slash")
        await monitor.type("softmax cheating")
        await monitor.until_shown("/softmax cheating (")
        shown = [row for row in monitor.app.monitor_screen.tree_rows.rows if row.kind == "variant"]
        state = monitor.app.model.state
        assert shown and all(state.variants[row.id].verdict.status == "cheating" for row in shown)
        await monitor.press("enter")
        await monitor.press("n")
        first = monitor.row()
        assert first in {row.id for row in shown}
        await monitor.press("n")
        assert monitor.row() in {row.id for row in shown} and (len(shown) == 1 or monitor.row() != first)
        await monitor.press("N")
        assert monitor.row() == first
        await monitor.press("escape")
        assert not monitor.app.monitor_screen.tree_rows.view.filter
        assert monitor.row() == first, "the cursor stays on its node"


async def test_a_row_shows_the_text_that_the_filter_matches(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session, (80, 24)) as monitor:
        state = monitor.app.model.state
        idea = next(one for one in state.ideas.values() if len(one.text.split()) > 12)
        word = next(word for word in reversed(idea.text.split()) if word.isalpha() and len(word) > 4)
        monitor.app.monitor_screen.set_filter(word)
        await monitor.pilot.pause()
        shown = [text for text in monitor.text().splitlines() if re.search(r"[◇✎] i\d+ ", text)]
        assert shown and all(word.lower() in text.lower() for text in shown), (word, shown)


@pytest.mark.keys("MonitorScreen", "o", "O")
async def test_sort_and_reverse(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        await monitor.press("o")
        await monitor.until_shown("Tree by speedup")
        rows = monitor.app.monitor_screen.tree_rows
        idea = next(place for place, row in enumerate(rows.rows) if row.kind == "idea")
        state = monitor.app.model.state
        count = len(state.ideas[rows.rows[idea].id].variants)
        speedups = [state.variants[row.id].speedup or 0.0 for row in rows.rows[idea + 1 : idea + 1 + count]]
        assert speedups == sorted(speedups, reverse=True)
        await monitor.press("O")
        await monitor.until_shown("Tree by speedup reversed")


@pytest.mark.keys("MonitorScreen", "t")
async def test_lineage_hangs_kernels_under_their_parents(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        await monitor.press("t")
        await monitor.until_shown("1 Lineage")
        rows = monitor.app.monitor_screen.tree_rows.rows
        variants = monitor.app.model.state.variants
        above: list[str] = []
        for row in rows:
            del above[row.depth :]
            above += [""] * (row.depth - len(above)) + [row.id]
            if row.kind == "variant" and row.depth > 1:
                assert variants[row.id].parent == above[row.depth - 1]
        assert sum(row.kind == "variant" for row in rows) == 60


async def test_an_idea_without_a_kernel_stands_like_a_kernel_in_the_lineage(open_monitor: Any, engine: Any) -> None:
    from engine.session.records.events import IdeaProposed

    about: dict[str, Any] = {"problem": "softmax", "round": 2, "category": "memory", "proposer": "you", "text": "wider"}
    engine.record(IdeaProposed(idea="i90", parent=None, **about), IdeaProposed(idea="i91", parent="v1", **about))
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("t")
        await monitor.until_shown("1 Lineage")
        view = monitor.app.monitor_screen.tree_view
        rows = view.tree_rows.rows
        shown = {row.id: view._draw(y).text for y, row in enumerate(rows)}
        assert shown["v1"].index("▾") == 2 and shown["i90"].index("◇") == 4 and shown["i91"].index("◇") == 6
        for depth in (1, 2):
            kernels = [row.id for row in rows if row.kind == "variant" and row.depth == depth]
            assert kernels and {shown[name].index(f" {name} ") - 1 for name in kernels} == {2 * depth + 2}


async def test_an_uncertain_speedup_is_marked_in_every_pane(open_monitor: Any, engine: Any) -> None:
    from engine.session.records import events as ev
    from engine.session.records.verdict import Timing, Verdict

    best = Verdict(
        status="correct", speedup=1.57, speedup_low=1.3, speedup_high=1.7, pairs=9, kernel=Timing(2.0, 2.0, 2.0, 9)
    )
    engine.record(ev.VerdictGiven(variant="v57", verdict=best))
    async with open_monitor(engine.paths) as monitor:
        await monitor.until_shown("layernorm: new best v57, ~1.57x [1.30, 1.70], 2.000 ms")
        text = monitor.text()
        assert "layernorm   ~1.57x" in text and "softmax      1.13x" in text
        await monitor.press("2", "plus")
        await monitor.until_shown("layernorm   ~1.57x   [1.30, 1.70]")
        assert "softmax      1.13x   [1.12, 1.13]" in monitor.text()
    async with open_monitor(engine.paths, (80, 24)) as monitor:
        assert "layernorm ~1.57x [1.30, 1.70]" in monitor.text()
    async with open_monitor(engine.paths, (200, 60)) as monitor:
        monitor.app.monitor_screen.tree_view.select("v57")
        await monitor.until_shown("Best  layernorm")
        shown_in = {"Evidence": "over eager   ~1.57x", "Why": "own verdict  ~1.57x over eager", "Kernel": ""}
        for tab, shown in shown_in.items():
            monitor.app.monitor_screen.detail.turn(tab)
            await monitor.until_shown(shown)
            text = monitor.text()
            assert "v57 ~1.57x [1.30, 1.70]" in text, "the title of the pane of the best"
            assert not re.search(r"(?<!~)1\.57x", text), f"{tab}:\n{text}"


@pytest.mark.keys("MonitorScreen", "F")
async def test_follow_goes_to_the_newest_best(open_monitor: Any, engine: Any) -> None:
    from engine.session.records import events as ev
    from engine.session.records.verdict import Timing, Verdict

    async with open_monitor(engine.paths) as monitor:
        await monitor.press("F")
        assert "following best" in monitor.text()
        best = Verdict(status="correct", speedup=9.0, kernel=Timing(0.4, 0.4, 0.4, 9))
        engine.record(ev.VerdictGiven(variant="v57", verdict=best))
        await monitor.until(lambda: monitor.row() == "v57", "the new best is selected")
        await monitor.until_shown("★ v57")
        await monitor.press("k")
        assert "following best" not in monitor.text(), "a hand on the keys ends it"


@pytest.mark.keys("MonitorScreen", "p")
async def test_hold_keeps_the_display_still(open_monitor: Any, engine: Any) -> None:
    from engine.session.records import events as ev

    async with open_monitor(engine.paths) as monitor:
        await monitor.press("p")
        await monitor.until_shown("DISPLAY HELD")
        engine.record(ev.LogLine(level="info", text="something new"))
        await monitor.until(lambda: "new" in monitor.app.model.story.lines[-1].text)
        assert "something new" not in monitor.text()
        await monitor.press("p")
        await monitor.until_shown("something new")


@pytest.mark.keys("MonitorScreen", "right_square_bracket", "left_square_bracket", "D", "m")
async def test_tabs_and_diffs(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        await monitor.press("B")
        best = monitor.row()
        parent = monitor.app.model.state.variants[best].parent
        await monitor.until_shown("#include <cuda_runtime.h>")
        await monitor.press("right_square_bracket")
        await monitor.until_shown(f"parent {parent} -> {best}")
        await monitor.press("right_square_bracket")
        await monitor.until_shown("checks, 5 of 5 passed")
        await monitor.press("right_square_bracket")
        await monitor.until_shown("lineage, newest first")
        await monitor.press("right_square_bracket")
        await monitor.until_shown("  2   v")
        await monitor.press("left_square_bracket", "left_square_bracket", "left_square_bracket")
        await monitor.press("g", "l", "l", "m", "G", "D")
        await monitor.until_shown("marked ")


@pytest.mark.keys("MonitorScreen", "D", "m")
async def test_diffs_skip_the_kernel_itself_and_kernels_that_do_not_exist(
    open_monitor: Any, session: SessionPaths
) -> None:
    async with open_monitor(session) as monitor:
        screen, state = monitor.app.monitor_screen, monitor.app.model.state
        best = state.variants[state.problems["softmax"].best]
        first = next(one for one in state.variants_of("softmax") if one.parent is None and one is not best)
        other = next(
            one for one in state.variants_of("softmax") if one.parent not in (None, best.id) and one is not best
        )

        async def select(node: str) -> None:
            assert screen.tree_view.select(node)
            await monitor.until(lambda: screen.detail.subject.id == node, node)

        await select(best.id)
        await monitor.press("m", "D")
        await monitor.until_shown(f"parent {best.parent} -> {best.id}")
        await monitor.press("D")
        assert f"parent {best.parent} -> {best.id}" in monitor.text(), "the best and the marked kernel are the kernel"
        await select(other.id)
        for step in ("best", "marked"):
            await monitor.press("D")
            await monitor.until_shown(f"{step} {best.id} -> {other.id}")
        await select(best.id)
        await monitor.until_shown(f"{best.id} is the marked kernel. Press D to compare")
        await select(other.id)
        await monitor.press("D", "D")
        await monitor.until_shown(f"best {best.id} -> {other.id}")
        await select(best.id)
        await monitor.until_shown(f"{best.id} is the best kernel. Press D to compare")
        await monitor.press("D")
        await monitor.until_shown(f"parent {best.parent} -> {best.id}")
        await select(first.id)
        await monitor.until_shown(f"{first.id} is a first kernel")
        await monitor.press("D")
        await monitor.until_shown(f"best {best.id} -> {first.id}")


@pytest.mark.keys("MonitorScreen", "1", "2", "3", "4", "5", "6", "7", "8", "plus", "escape")
async def test_panes_by_number_and_zoom(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        screen = monitor.app.monitor_screen
        for key, pane in [("2", "scoreboard"), ("3", "devices"), ("5", "log"), ("4", "detail-pane"), ("1", "tree")]:
            await monitor.press(key)
            assert pane in {node.id for node in screen.focused.ancestors_with_self}
        await monitor.press("4", "plus")
        await monitor.pilot.pause(0.2)
        assert not screen.tree_pane.display and screen.detail.size.width == 120
        await monitor.press("plus")
        await monitor.pilot.pause(0.2)
        assert screen.tree_pane.display
        await monitor.press("6")
        await monitor.until_shown("6 Leaders")
        await monitor.press("8")
        await monitor.until_shown("best speedup over eager  softmax")
        await monitor.press("7")
        await monitor.until_shown("7 Best  softmax")
        await monitor.until_shown("#include <cuda_runtime.h>")
        assert "tabs" not in monitor.text().splitlines()[-1], "they are the other pane's"
        await monitor.press("escape")
        await monitor.pilot.pause(0.2)
        assert screen.focused is screen.tree_view


async def test_a_switch_to_the_lineage_and_back_returns_to_the_same_row(
    open_monitor: Any, session: SessionPaths
) -> None:
    async with open_monitor(session) as monitor:
        await monitor.press("g", "j")
        before = monitor.row()
        assert before is not None and "/r" in before, "a round, which the lineage does not have"
        await monitor.press("t")
        assert monitor.row() != before
        await monitor.press("t")
        assert monitor.row() == before


@pytest.mark.keys("MonitorScreen", "enter", "B")
async def test_at_80x24_enter_opens_the_detail_and_esc_comes_back(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session, (80, 24)) as monitor:
        await monitor.press("B", "enter")
        await monitor.until_shown("#include <cuda_runtime.h>")
        assert "speedup change" not in monitor.text()
        await monitor.press("escape")
        await monitor.until_shown("speedup change")
        for number in "235678":
            await monitor.press(number)
            await monitor.pilot.pause(0.1)
            assert f" {number} " in monitor.text()
            await monitor.press("escape")


@pytest.mark.keys("MonitorScreen", "y", "Y")
async def test_copy_sends_osc_52(open_monitor: Any, session: SessionPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    import base64

    async with open_monitor(session) as monitor:
        sent: list[str] = []
        monkeypatch.setattr(monitor.app, "write_sequence", sent.append)
        await monitor.press("B", "y")
        await monitor.until_shown("Copied the source of")
        assert sent[0].startswith("\x1b]52;c;") and sent[0].endswith("\x07")
        assert b"cuda_runtime" in base64.b64decode(sent[0][7:-1])
        await monitor.press("Y")
        assert base64.b64decode(sent[1][7:-1]).decode() == monitor.row()


@pytest.mark.keys("MonitorScreen", "question_mark")
async def test_help_is_about_the_focused_pane(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        await monitor.press("question_mark")
        await monitor.until_shown("The search as a tree")
        await monitor.press("escape", "3", "question_mark")
        await monitor.until_shown("Each device: load, memory")
        await monitor.press("escape")
        assert len(monitor.app.screen_stack) == 1


def test_help_separates_the_keys_from_their_meaning() -> None:
    shown = "\n".join(one.text for one in help_lines(LinesView(), [], [], monochrome(), 90, ascii_only=False))
    moving = shown.split("Moving in this pane")[1].split("\n\n")[0]
    assert moving and all("  " in one.rstrip() for one in moving.splitlines() if one)


@pytest.mark.keys("MonitorScreen", "ctrl+p")
async def test_the_palette_runs_actions_by_name(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        await monitor.press("ctrl+p")
        await monitor.type("lineage")
        await monitor.pilot.pause(0.5)
        await monitor.press("down", "enter")
        await monitor.until_shown("1 Lineage")


@pytest.mark.keys("MonitorScreen", "T")
@pytest.mark.keys("ThemeScreen", "escape", "q", "T")
async def test_a_theme_is_saved_only_by_enter(open_monitor: Any, session: SessionPaths) -> None:
    from tui.monitor.settings import load_settings

    async with open_monitor(session) as monitor:
        before = monitor.app.theme
        for leave in ("escape", "q", "T"):
            await monitor.press("T", "down")
            await monitor.until(lambda: monitor.app.theme == "textual-light", "the highlighted theme")
            await monitor.press(leave)
            await monitor.until(lambda: monitor.app.theme == before, leave)
            assert len(monitor.app.screen_stack) == 1
        assert load_settings().theme == before
        await monitor.press("T", "down", "down", "enter")
        await monitor.until_shown("Saved theme ansi-dark for every session.")
        assert monitor.app.theme == load_settings().theme == "ansi-dark"


async def test_a_theme_that_cannot_be_saved_says_so(
    open_monitor: Any, session: SessionPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    async with open_monitor(session) as monitor:
        await monitor.press("T", "down", "enter")
        await monitor.until_shown("so it applies to this monitor only: ")


@pytest.mark.keys("MonitorScreen", "f8")
async def test_svg_screenshot(
    open_monitor: Any, session: SessionPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    async with open_monitor(session) as monitor:
        await monitor.press("f8")
        await monitor.until_shown("Saved ")
    assert [file.suffix for file in session.directory.glob("*.svg")] == [".svg"]
    assert not list(elsewhere.iterdir())


@pytest.mark.keys("MonitorScreen", "q")
async def test_q_leaves_and_says_that_the_search_goes_on(open_monitor: Any, engine: Any) -> None:
    from engine.session.records import events as ev

    engine.record(ev.BudgetChanged(minutes=60.0))
    async with open_monitor(engine.paths) as monitor:
        words = parting_words(monitor.app.model)
        await monitor.press("q")
        await monitor.pilot.pause(0.2)
        assert monitor.app.return_value == 0
    assert (
        "continues" in words
        and "of its time budget is left" in words
        and f"kernel-tui stop {engine.paths.directory}" in words
    )
    assert engine.commands() == []


async def test_q_says_that_the_search_is_stopping(open_monitor: Any, engine: Any) -> None:
    from engine.session.records.requests import Stop
    from engine.session.store import send_request

    async with open_monitor(engine.paths) as monitor:
        send_request(engine.paths, Stop(), "another terminal")
        engine.answer()
        words = parting_words(monitor.app.model)
        assert "is stopping (pid " in words and "continues" not in words


async def test_a_click_selects_and_a_click_on_a_tab_turns_to_it(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        await monitor.pilot.click("#tree", offset=(10, 2))
        assert monitor.row() == "softmax/r1"
        bar = monitor.app.monitor_screen.detail.bar
        x = bar.lines[0].text.index("Evidence")
        await monitor.pilot.click(bar, offset=(x + 1, 0))
        await monitor.pilot.pause(0.1)
        assert monitor.app.monitor_screen.detail.tab == "Evidence"


async def test_ascii_glyphs_only(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session, ascii_only=True) as monitor:
        tree = [line[:58] for line in monitor.text().splitlines()[3:-6]]
        assert all(text.replace("…", "").replace("·", "").isascii() for text in tree)


async def test_text_grid_is_stable(open_monitor: Any, engine: Any) -> None:
    """Compare the screen with recorded text, at three sizes. ``UPDATE_GRIDS=1`` rewrites the recorded text."""
    import os

    for width, height in ((80, 24), (120, 40), (200, 60)):
        async with open_monitor(engine.paths, (width, height)) as monitor:
            await monitor.until(lambda: "Drawing …" not in monitor.text(), "the charts")
            file = Path(__file__).parent / "grids" / f"{width}x{height}.txt"
            text = monitor.text() + "\n"
            if os.environ.get("UPDATE_GRIDS"):
                file.parent.mkdir(exist_ok=True)
                file.write_text(text, encoding="utf-8")
            assert text == file.read_text(encoding="utf-8")
