"""The tree's pane says why it is empty, and shows where it has cut something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from engine.events import IdeaProposed
from engine.session import EngineLock, SessionPaths, create_session
from tui.widgets.tree_lines import fitted

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
    )
    async with open_monitor(engine.paths, (80, 24)) as monitor:
        view = monitor.app.monitor_screen.tree_view
        shown = {row.id: view._draw(y).text.rstrip() for y, row in enumerate(view.tree_rows.rows)}
        assert shown["i90"].endswith(" … two wgmmas") and shown["i91"].endswith(" … the epilogue")
        assert shown["i92"].endswith("  on v1: Use wider loads") and shown["i93"].endswith("  on v2: Use wider loads")
        assert all("Read each fragment" in shown[name] for name in ("i90", "i91"))


async def test_no_row_of_the_tree_is_cut_without_a_sign(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session, (120, 40)) as monitor:
        tree = monitor.app.monitor_screen.tree_view
        state = monitor.app.model.state
        shown = {row.id: tree._draw(y).text.rstrip() for y, row in enumerate(tree.tree_rows.rows)}
        ideas = [name for name in shown if name in state.ideas]
        assert any(shown[name].endswith("…") for name in ideas)
        for name in ideas:
            assert shown[name].endswith("…") or shown[name].endswith(state.ideas[name].text), shown[name]
        assert "round 2" in shown["softmax"] and "kern" not in shown["softmax"], "whole counts or none"


async def test_before_the_first_problem_the_tree_says_what_will_come(open_monitor: Any, tmp_path: Path) -> None:
    paths = create_session(tmp_path, "fresh", "problems = []\n", "c.toml", 0)
    lock = EngineLock(paths)
    async with open_monitor(paths) as monitor:
        await monitor.until_shown("No problem yet. Each stands here once")
        lock.release()
        await monitor.until_shown("The engine ended before it had opened a")


async def test_a_filter_that_matches_nothing_says_so(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        await monitor.press("slash")
        await monitor.type("zzz")
        await monitor.until_shown("Nothing matches zzz; esc drops the filter.")
        await monitor.press("escape")
        await monitor.until_shown("round 2")
