"""A row of the tree says what differs from its parent and siblings, not what they share."""

from __future__ import annotations

from typing import Any

import pytest

from engine.session.records import events as ev
from tests.tui.conftest import monitor_of
from tui.monitor.panes.tree.summary import unshared


@pytest.mark.parametrize(
    ("text", "other", "shown"),
    [
        ("threads=256 vec=4 unroll=8", "threads=256 vec=4 unroll=2", "… unroll=8"),
        ("lanes 1 -> 16, math libm -> fast, unroll 1 -> 2", "lanes 1 -> 16, math libm -> fast", "… unroll 1 -> 2"),
        ("tile 64x64, accumulators 2", "tile 64x64, accumulators 1", "… accumulators 2"),
        ("one warp for each row, accumulators 2", "one warp for each row, accumulators 1", "… accumulators 2"),
        (
            "rows split over warps with 2 accumulators",
            "rows split over warps with 1 accumulator",
            "… with 2 accumulators",
        ),
        ("prefetch distance 0 -> 512", "prefetch distance 0 -> 128", "prefetch distance 0 -> 512"),
        (
            "+ stores that bypass caches, distance 0 -> 512",
            "+ stores that bypass caches, distance 0 -> 128",
            "… distance 0 -> 512",
        ),
        ("lanes 1 -> 16", "lanes 1 -> 8", "lanes 1 -> 16"),
        ("Replace the loop", "Replace the grid", "Replace the loop"),
        ("the same", "the same", "the same"),
        ("", "anything", ""),
    ],
)
def test_a_shared_beginning_is_dropped_at_a_boundary(text: str, other: str, shown: str) -> None:
    assert unshared(text, [other, "something else"]) == shown


async def test_the_tree_shows_what_a_kernel_changed(engine: Any) -> None:
    shared = "Keep the row in registers and split it over one warp"
    for number, note in ((900, f"{shared}, accumulators 1"), (901, f"{shared}, accumulators 2")):
        idea = ev.IdeaProposed(
            idea=f"i{number}", problem="softmax", round=2, parent="v900" if number > 900 else None,
            category="memory", text=f"{note} as an idea", proposer="m",
        )  # fmt: skip
        kernel = ev.VariantWritten(
            variant=f"v{number}", idea=f"i{number}", problem="softmax", round=2, language="cu", source="0",
            proposer="m", parent="v900" if number > 900 else None, note=note,
        )  # fmt: skip
        engine.record(idea, kernel)
    async with monitor_of(engine.paths, (120, 60)) as monitor:
        assert monitor.app.monitor_screen.tree_view.select("v901")
        await monitor.until_shown("accumulators 2")
        lines = [line[:60] for line in monitor.text().splitlines()]
        kernel, idea = (next(line for line in lines if f" {name} " in line) for name in ("v901", "i901"))
        assert "accumulators 2" in kernel and "Keep the row" not in kernel
        assert "accumulators 2" in idea and "Keep the row" not in idea
