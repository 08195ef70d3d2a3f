"""Serial: a single chain of kernels. Each kernel derives from the previous one, whether the new kernel is faster or
not.

Stanford CRFM ("fast kernels", 2025) uses this sequential revision as the baseline for parallel search.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.search.strategies.base import Candidate, Selection, against, answer, milliseconds, ranking


def serial(candidates: Sequence[Candidate], *, round_number: int, width: int, seed: int) -> Selection:
    """Select the fastest unexhausted kernel of the newest round that has one, and all pinned kernels.

    ``width`` has no effect. If a round yields no correct kernel, the chain keeps its last kernel. If no proposer has a
    new idea for that kernel, the chain returns to the newest kernel with new ideas.
    """
    ranked = ranking(candidates)
    open_ones = [one for one in ranked if not one.exhausted]
    newest = max((one.round for one in open_ones), default=-1)
    link = next((one for one in open_ones if one.round == newest), None)
    if link is None:
        return answer(ranked, {}, {})
    return answer(
        ranked,
        {link.variant: _why_selected(link, ranked, round_number)},
        {one.variant: _why_dropped(one, link, ranked) for one in ranked},
    )


def _why_selected(link: Candidate, ranked: Sequence[Candidate], round_number: int) -> str:
    beside = "the best so far" if link is ranked[0] else against(link, ranked[0], ranked)
    words = f"next in the chain: fastest in round {link.round}, {milliseconds(link.ms)}, {beside}"
    if link.round < round_number:
        return f"{words}; round {round_number} has no kernel to continue with"
    return words


def _why_dropped(one: Candidate, link: Candidate, ranked: Sequence[Candidate]) -> str:
    if one.round < link.round:
        gone_on = f"the chain continues with {link.variant} of round {link.round}"
        return f"of round {one.round}, {milliseconds(one.ms)}: {gone_on}"
    return f"{against(one, link, ranked)}; a chain has one kernel per round"
