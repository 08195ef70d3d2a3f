"""``/`` searches the focused text pane and highlights matches. n and N go to the matches, and esc ends the search."""

from __future__ import annotations

from typing import Any

import pytest

from engine.session.records import events as ev
from tests.tui.conftest import Monitor, monitor_of
from tui.monitor.panes.lines import LinesView


def found(monitor: Monitor, view: LinesView) -> tuple[list[str], list[int]]:
    """Return the highlighted texts in view, and the screen lines of the current match."""
    palette, top = view.palette, view.scroll_offset.y
    texts, here = [], []
    for y in range(view.size.height):
        for segment in view.strip_at(top + y):
            if segment.style in (palette.found, palette.found_here):
                texts.append(segment.text)
            if segment.style == palette.found_here:
                here.append(top + y)
    return texts, sorted(set(here))


@pytest.mark.keys("SearchBar", "escape")
async def test_the_source_is_searched(engine: Any) -> None:
    async with monitor_of(engine.paths) as monitor:
        screen = monitor.app.monitor_screen
        await monitor.press("B", "enter")
        view, filtered = screen.detail.view, screen.tree_rows.view
        wanted = [y for y, line in enumerate(view.lines) if "float" in line.text]
        assert len(wanted) > 3
        await monitor.press("slash", *"FLOAT")
        texts, here = found(monitor, view)
        assert set(texts) == {"float"} and here == wanted[:1] and not filtered.filter
        await monitor.press("enter", "n", "n")
        assert screen.focused is view and found(monitor, view)[1] == [wanted[2]]
        await monitor.press("N")
        assert found(monitor, view)[1] == [wanted[1]]
        await monitor.press("N", "N")
        assert found(monitor, view)[1] == [wanted[-1]], "around the beginning, and scrolled to"
        await monitor.press("escape")
        assert found(monitor, view) == ([], []) and screen.focused is view
        await monitor.press("slash", *"float", "escape")
        assert found(monitor, view) == ([], []) and screen.focused is view
        await monitor.press("escape")
        assert screen.focused is screen.tree_view


async def test_the_log_is_searched_and_a_match_far_to_the_right_is_scrolled_to(engine: Any) -> None:
    engine.record(ev.LogLine(level="info", text=f"{'word ' * 60}needle in it"))
    engine.record(*(ev.LogLine(level="info", text=f"line {number}") for number in range(40)))
    async with monitor_of(engine.paths) as monitor:
        await monitor.until_shown("line 39")
        await monitor.press("5", "slash", *"needle", "enter")
        await monitor.until_shown("needle in it")
        engine.record(ev.LogLine(level="info", text="one more line"))
        await monitor.pilot.pause(0.5)
        assert "needle in it" in monitor.text(), "a new line does not scroll the match away"
        await monitor.press("escape", "slash", *"no such text", "enter", "n")
        await monitor.until_shown("no match")


async def test_a_search_scrolls_sideways_only_for_a_match_beyond_the_edge(engine: Any) -> None:
    engine.record(ev.LogLine(level="info", text=f"first needle {'word ' * 30}far {'word ' * 30}end"))
    engine.record(*(ev.LogLine(level="info", text=f"needle {number}") for number in range(40)))
    async with monitor_of(engine.paths) as monitor:
        await monitor.until_shown("needle 39")
        await monitor.press("5", "g", "slash", *"far", "enter")
        view = monitor.app.screen.focused
        assert isinstance(view, LinesView) and view.scroll_offset.x > 0
        await monitor.press("slash", *"\b\b\b", "enter")
        await monitor.press("escape", "slash", *"needle", "enter")
        assert view.scroll_offset.x == 0, "the match is at the left"
        await monitor.press("escape", "G")
        view.search(view.lines[0].text)
        assert view.scroll_offset == (0, 0), "the first line is scrolled to"
