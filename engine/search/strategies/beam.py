"""Beam: select the fastest kernels from more than one idea, plus one promising kernel.

Some slower kernels led to better kernels in later rounds of Stanford CRFM's published runs ("fast kernels", 2025). A
search that selects only the best kernel misses these slower kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.proposers.categories import CATEGORY_NAMES
from engine.search.strategies.base import (
    Candidate,
    Selection,
    against,
    answer,
    milliseconds,
    ranking,
    slowdown,
    why_fast,
)

PROMISING_SLOWDOWN = 1.5
"""Maximum time of a promising kernel, as a multiple of the best kernel's time."""


def beam(candidates: Sequence[Candidate], *, round_number: int, width: int, seed: int) -> Selection:
    """Select the ``width`` fastest kernels from several ideas, all pinned kernels and, for one round, a promising
    kernel.
    """
    ranked = ranking(candidates)
    if not ranked:
        return Selection((), ())
    best = ranked[0]
    open_ones = [one for one in ranked if one.pinned or not one.exhausted]
    fastest = _diverse([one for one in open_ones if not one.exhausted], width)
    why = {one.variant: why_fast(one, ranked, rank) for rank, one in enumerate(fastest, start=1)}
    if (newcomer := _promising(open_ones, fastest, best, round_number)) is not None:
        why[newcomer.variant] = (
            f"promising: the first to try {CATEGORY_NAMES.get(newcomer.category, newcomer.category)}, "
            f"{against(newcomer, best, ranked)}; selected for one round"
        )
    return answer(ranked, why, {one.variant: _why_dropped(one, ranked, fastest, width) for one in ranked})


def _diverse(ranked: Sequence[Candidate], width: int) -> list[Candidate]:
    """Return the ``width`` fastest kernels, with one place reserved for a kernel of a second idea."""
    per_idea = max(1, width - 1)
    chosen: list[Candidate] = []
    count: Counter[str] = Counter()
    for one in ranked:
        if len(chosen) == width:
            break
        if count[one.idea] < per_idea:
            chosen.append(one)
            count[one.idea] += 1
    for one in ranked:
        if len(chosen) < width and one not in chosen:
            chosen.append(one)
    return [one for one in ranked if one in chosen]


def _promising(
    ranked: Sequence[Candidate], fastest: Sequence[Candidate], best: Candidate, round_number: int
) -> Candidate | None:
    """Return this round's fastest kernel whose category is new to the selected kernels' lineages.

    Return None if no such kernel is within ``PROMISING_SLOWDOWN``.
    """
    known = {category for one in fastest for category in (one.category, *one.lineage_categories)}
    for one in ranked:
        if one in fastest or one.pinned or one.exhausted or one.round != round_number:
            continue
        if one.category not in known and slowdown(one, best) <= PROMISING_SLOWDOWN:
            return one
    return None


def _why_dropped(one: Candidate, ranked: Sequence[Candidate], fastest: Sequence[Candidate], width: int) -> str:
    best = ranked[0]
    siblings = [other.variant for other in fastest if other.idea == one.idea]
    if len(siblings) >= max(1, width - 1) and fastest and slowdown(one, best) <= slowdown(fastest[-1], best):
        named, are = " and ".join(siblings), "is" if len(siblings) == 1 else "are"
        return f"{milliseconds(one.ms)}, but {named} of the same idea {one.idea} {are} already selected"
    return f"{against(one, best, ranked)}; only {width} {'is' if width == 1 else 'are'} selected for speed"
