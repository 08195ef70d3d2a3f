"""Greedy: the fastest and nothing else, whatever idea they come from. With one place it climbs from the best alone."""

from __future__ import annotations

from collections.abc import Sequence

from engine.selection.base import Candidate, Selection, against, answer, ranking, why_fast


def greedy(candidates: Sequence[Candidate], *, round_number: int, width: int, seed: int) -> Selection:
    """The ``width`` fastest that are not exhausted, and every pinned one."""
    ranked = ranking(candidates)
    fastest = [one for one in ranked if not one.exhausted][:width]
    only = "only the fastest is carried" if width == 1 else f"only the {width} fastest are carried"
    return answer(
        ranked,
        {one.variant: why_fast(one, ranked, rank) for rank, one in enumerate(fastest, start=1)},
        {one.variant: f"{against(one, ranked[0], ranked)}; {only}" for one in ranked},
    )
