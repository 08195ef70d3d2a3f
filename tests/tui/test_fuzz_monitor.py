"""Dozens of texts from benchmarks/fuzz_monitor.py, in every pane and in a real terminal."""

from __future__ import annotations

import random

from benchmarks.fuzz_monitor import drawn, terminal
from benchmarks.hostile import hostile

DRAWN, PAINTED = 60, 8
PANES = {
    "tree by round", "tree by lineage", "tree by round, filtered", "tree by lineage, filtered", "tree's title",
    "kernel", "diff", "evidence and build log", "why", "idea", "conversation", "leaders", "log", "status", "alarm",
    "scoreboard", "devices", "spending", "kernels side by side", "command answers", "picker", "dialogs",
    "notifications", "words on leaving",
}  # fmt: skip


async def test_no_pane_draws_what_a_terminal_acts_on() -> None:
    rng = random.Random(17)
    faults: list[str] = []
    shown = await drawn([hostile(rng, lone=True) for _ in range(DRAWN)], faults)
    assert not faults, "\n".join(faults[:20])
    assert set(shown) >= PANES
    assert all(shown[pane] > DRAWN // 5 for pane in PANES), shown


def test_no_sequence_but_our_own_reaches_a_terminal() -> None:
    rng = random.Random(23)
    faults: list[str] = []
    shown = terminal([hostile(rng) for _ in range(PAINTED)], faults, kernels=1)
    assert not faults, "\n".join(faults[:20])
    assert shown["texts"] == PAINTED and shown["screens"] > 30 and shown["bytes"] > 20_000
