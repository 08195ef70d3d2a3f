"""An empty tree pane says why it is empty, and cut text ends in an ellipsis."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from engine.session.records.events import BY_HAND, IdeaProposed, IdeaWaiting, RoundStarted
from engine.session.store import EngineLock, SessionPaths, create_session
from tui.monitor.panes.tree.tree_lines import fitted, indent

RED = Style(color="red")


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("round 2", 7, "round 2"),
        ("round 2", 6, "round…"),
        ("a long title", 5, "a lo…"),
        ("漢字漢字", 5, "漢字…"),
        ("x", 0, ""),
    ],
)
def test_what_is_cut_ends_in_an_ellipsis(text: str, width: int, shown: str) -> None:
    strip = fitted(Strip([Segment(text, RED)]), width)
    assert strip.text == shown
    assert all(segment.style == RED for segment in strip)


async def test_ideas_that_begin_alike_are_told_apart(open_monitor: Any, engine: Any) -> None:
    alike = "Read each fragment of the inner rows once with ldmatrix and keep it in registers for "
    about: dict[str, Any] = {"problem": "softmax", "round": 2, "parent": None, "category": "memory", "proposer": "m"}
    engine.record(
        IdeaProposed(idea="i90", text=f"{alike}two wgmmas", **about),
        IdeaProposed(idea="i91", text=f"{alike}the epilogue", **about),
        IdeaProposed(idea="i92", text="Use wider loads", **about | {"parent": "v1"}),
        IdeaProposed(idea="i93", text="Use wider loads", **about | {"parent": "v2"}),
        IdeaProposed(idea="i94", text=f"{alike}both", **about | {"parent": "v1", "data": {"move": "reuse"}}),
        IdeaProposed(idea="i95", text=f"{alike}both at once", **about | {"parent": "v2", "data": {"move": "reuse"}}),
    )
    async with open_monitor(engine.paths, (80, 24)) as monitor:
        view = monitor.app.monitor_screen.tree_view
        shown = {row.id: view._draw(y).text.rstrip() for y, row in enumerate(view.tree_rows.rows)}
        assert shown["i90"].endswith(" … two wgmmas") and shown["i91"].endswith(" … the epilogue")
        assert shown["i92"].endswith("  on v1: Use wider loads") and shown["i93"].endswith("  on v2: Use wider loads")
        assert not any("Read each fragment" in shown[name] for name in ("i90", "i91")), "what they share is dropped"
        assert "reuse on v1: Read each fragment of the inner" in shown["i94"], "the kernel tells them apart"
        assert "reuse on v2: Read each fragment of the inner" in shown["i95"]


async def test_kernels_are_indented_below_their_idea_and_ideas_align(open_monitor: Any, engine: Any) -> None:
    about: dict[str, Any] = {
        "problem": "softmax",
        "round": 2,
        "parent": None,
        "category": "memory",
        "proposer": BY_HAND,
    }
    engine.record(
        IdeaProposed(idea="i90", text="use 4 rows at a time", **about),
        IdeaWaiting(idea="i90", reason="no proposer of this session reads prose"),
    )
    async with open_monitor(engine.paths, (80, 24)) as monitor:
        await monitor.until(lambda: "i90" in monitor.app.model.state.ideas, "the idea")
        view = monitor.app.monitor_screen.tree_view
        start: dict[str, set[int]] = {"idea": set(), "variant": set()}
        for y, row in enumerate(view.tree_rows.rows):
            if row.kind in ("idea", "variant"):
                start[row.kind].add(view._draw(y).text.index(f" {row.id}") - 1)
        assert start == {"idea": {6}, "variant": {8}}


async def test_a_folded_round_shows_the_star_of_its_best_kernel(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths, (120, 40)) as monitor:
        view, state = monitor.app.monitor_screen.tree_view, monitor.app.model.state
        bests = [state.variants[problem.best] for problem in state.problems.values()]
        for folded in (True, False):
            view.tree_rows.fold_all(folded)
            starred = [row.id for y, row in enumerate(view.tree_rows.rows) if "★" in view._draw(y).text]
            assert starred == [f"{best.problem}/r{best.round}" if folded else best.id for best in bests]


def line_of_cursor(monitor: Any) -> int:
    """Return the line of the selected row, counted from the tree's first line."""
    view = monitor.app.monitor_screen.tree_view
    ground = view.palette.cursor if view.has_focus else view.palette.cursor_blurred
    drawn = [
        y
        for y, strip in enumerate(view.render_lines(view.size.region))
        if any(segment.style is not None and segment.style.bgcolor == ground.bgcolor for segment in strip)
    ]
    assert len(drawn) == 1, f"{monitor.row()}: selected rows on the screen: {drawn}\n{monitor.text()}"
    return drawn[0]


@pytest.mark.parametrize("aside", [(), ("enter",)], ids=["in the tree", "while the detail is open"])
async def test_the_selected_row_keeps_its_line_while_rows_come_and_go(
    open_monitor: Any, engine: Any, aside: tuple[str, ...]
) -> None:
    """New rows appear above the selected row, and the round above is folded."""
    about: dict[str, Any] = {"problem": "softmax", "parent": None, "category": "memory", "proposer": "m"}
    async with open_monitor(engine.paths, (120, 40)) as monitor:
        await monitor.press("g", *["j"] * 22)
        selected, view = monitor.row(), monitor.app.monitor_screen.tree_view
        assert view.scroll_offset.y == 0
        line, place = line_of_cursor(monitor), view.cursor
        await monitor.press(*aside)
        engine.record(*(IdeaProposed(idea=f"i{90 + n}", text=f"Idea {n}", round=2, **about) for n in range(30)))
        await monitor.until(lambda: "i119" in monitor.app.model.state.ideas, "the ideas")
        await monitor.press(*(["escape"] if aside else []))
        assert monitor.row() == selected
        assert view.cursor == place + 30, "they stand above it"
        assert line_of_cursor(monitor) == line
        engine.record(RoundStarted(problem="softmax", round=3, parents=[]))  # the one before folds
        await monitor.until(lambda: view.cursor < place, "the fold")
        assert monitor.row() == selected
        assert line_of_cursor(monitor) <= line


async def test_a_steering_key_shows_the_row_that_it_is_about(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths, (80, 24)) as monitor:
        await monitor.press("asterisk", "asterisk", "G")
        selected, view = monitor.row(), monitor.app.monitor_screen.tree_view
        view.scroll_to(y=0, animate=False, immediate=True)  # as the wheel of a mouse does
        engine.record(RoundStarted(problem="layernorm", round=3, parents=[]))
        await monitor.until(lambda: len(monitor.app.model.state.problems["layernorm"].rounds) == 4, "the round")
        await monitor.pilot.pause(0.2)
        assert view.scroll_offset.y == 0, "who scrolled away stays there"
        await monitor.press("d")
        await monitor.until_shown(f"Prune {selected}?")
        assert view.scroll_offset.y <= view.cursor < view.scroll_offset.y + view.size.height


async def test_keys_act_on_the_rows_that_a_held_display_shows(open_monitor: Any, engine: Any) -> None:
    about: dict[str, Any] = {"problem": "softmax", "parent": None, "category": "memory", "proposer": "m"}
    async with open_monitor(engine.paths, (120, 40)) as monitor:
        await monitor.press("G", "p")
        selected = monitor.row()
        engine.record(*(IdeaProposed(idea=f"i{90 + n}", text=f"Idea {n}", round=2, **about) for n in range(5)))
        await monitor.until(lambda: "i94" in monitor.app.model.state.ideas, "the ideas")
        assert monitor.row() == selected
        await monitor.press("p")
        assert monitor.row() == selected
        await monitor.until_shown("i94")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_an_idea_of_a_catalogue_begins_with_its_transformation_and_its_kernel(
    open_monitor: Any, engine: Any, size: tuple[int, int]
) -> None:
    about: dict[str, Any] = {"problem": "softmax", "round": 2, "category": "compute", "proposer": "playbook"}
    text = "The loops handle one float per instruction, so the arithmetic units are almost idle."
    tried = {"i90": ("vectorise", "v6"), "i91": ("share_rows", "v7"), "i92": ("vectorise+prefetch", "v6")}
    labels = {"i90": "vectorize", "i91": "share rows", "i92": "vectorize + prefetch"}
    engine.record(
        *(
            IdeaProposed(idea=idea, parent=parent, text=text, data={"move": transformation}, **about)
            for idea, (transformation, parent) in tried.items()
        )
    )
    async with open_monitor(engine.paths, size) as monitor:
        view = monitor.app.monitor_screen.tree_view
        shown = {row.id: view._draw(y).text.rstrip() for y, row in enumerate(view.tree_rows.rows)}
        for idea, (_, parent) in tried.items():
            assert f"  {labels[idea]} on {parent}: The" in shown[idea]


async def test_no_row_of_the_tree_is_cut_without_a_sign(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session, (120, 40)) as monitor:
        tree = monitor.app.monitor_screen.tree_view
        state = monitor.app.model.state
        shown = {row.id: tree._draw(y).text.rstrip() for y, row in enumerate(tree.tree_rows.rows)}
        ideas = [name for name in shown if name in state.ideas]
        assert any(shown[name].endswith("…") for name in ideas)
        for name in ideas:
            assert shown[name].endswith("…") or shown[name].endswith(state.ideas[name].text), shown[name]
        problem = shown["softmax"]
        assert "round 2" in problem and ("30 kernels" in problem or "kern" not in problem), "whole counts or none"


@pytest.mark.parametrize("width", [24, 40, 90])
def test_a_child_stands_further_in_than_its_parent(width: int) -> None:
    steps = [indent(depth, width) for depth in range(width // 3)]
    assert all(below > above for above, below in pairwise(steps)), steps
    assert indent(3, width) == 6 and indent(500, width) == width // 2


async def test_before_the_first_problem_the_tree_says_what_will_come(open_monitor: Any, tmp_path: Path) -> None:
    paths = create_session(tmp_path, "fresh", "problems = []\n", "c.toml", 0)
    lock = EngineLock(paths)
    async with open_monitor(paths) as monitor:
        await monitor.until_shown("No problem is open yet.")
        lock.release()
        await monitor.until_shown("The engine ended before it opened a")


async def test_a_filter_that_matches_nothing_says_so(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        await monitor.press("slash")
        await monitor.type("zzz")
        await monitor.until_shown("Nothing matches zzz.")
        await monitor.press("escape")
        await monitor.until_shown("round 2")


async def test_rows_end_before_a_scrollbar_that_appears(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths, (120, 30)) as monitor:
        view = monitor.app.monitor_screen.tree_view
        await monitor.press("asterisk")
        await monitor.until(lambda: not view.show_vertical_scrollbar, "every round is folded")
        await monitor.press("asterisk", "g")
        await monitor.until(lambda: view.show_vertical_scrollbar, "the scrollbar")
        await monitor.pilot.pause(0.3)
        width = view.scrollable_content_region.width
        top = view.scroll_offset.y
        assert {view.strip_at(top + y).cell_length <= width for y in range(view.size.height)} == {True}
