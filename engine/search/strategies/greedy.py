"""Greedy: select only the fastest kernels, from any idea. With a ``width`` of 1, the search is hill climbing from the
best kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.search.strategies.base import Candidate, Selection, against, answer, ranking, why_fast


def greedy(candidates: Sequence[Candidate], *, round_number: int, width: int, seed: int) -> Selection:
    """Select the ``width`` fastest kernels that are not exhausted, and all pinned kernels."""
    ranked = ranking(candidates)
    fastest = [one for one in ranked if not one.exhausted][:width]
    only = "only the fastest is selected" if width == 1 else f"only the {width} fastest are selected"
    return answer(
        ranked,
        {one.variant: why_fast(one, ranked, rank) for rank, one in enumerate(fastest, start=1)},
        {one.variant: f"{against(one, ranked[0], ranked)}; {only}" for one in ranked},
    )
