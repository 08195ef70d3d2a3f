"""The beam: the fastest, not all from one idea, and what is promising.

In the trajectories that Stanford CRFM published ("fast kernels", 2025), several rounds were slower than the best so far
and still led on, and carrying only the global best hurts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.proposers.protocol import CATEGORY_NAMES
from engine.selection.base import Candidate, Selection, against, answer, milliseconds, ranking, slowdown, why_fast

PROMISING_SLOWDOWN = 1.5
"""A promising kernel may take up to this many times the best kernel's time."""


def beam(candidates: Sequence[Candidate], *, round_number: int, width: int, seed: int) -> Selection:
    """The ``width`` fastest, not all from one idea; every pinned one; one promising newcomer for one round."""
    ranked = ranking(candidates)
    if not ranked:
        return Selection((), ())
    best = ranked[0]
    open_ones = [one for one in ranked if one.pinned or not one.exhausted]
    fastest = _diverse([one for one in open_ones if not one.exhausted], width)
    why = {one.variant: why_fast(one, ranked, rank) for rank, one in enumerate(fastest, start=1)}
    if (newcomer := _promising(open_ones, fastest, best, round_number)) is not None:
        why[newcomer.variant] = (
            f"promising: opens {CATEGORY_NAMES.get(newcomer.category, newcomer.category)}, "
            f"{against(newcomer, best, ranked)}; carried for one round"
        )
    return answer(ranked, why, {one.variant: _why_dropped(one, ranked, fastest, width) for one in ranked})


def _diverse(ranked: Sequence[Candidate], width: int) -> list[Candidate]:
    """The first ``width``, of which one place is kept for another idea than the first ones' where there is one."""
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
    """The fastest kernel of this round whose category no carried kernel has in its lineage."""
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
        return f"{milliseconds(one.ms)}, but {named} of the same idea {one.idea} {are} carried already"
    return f"{against(one, best, ranked)}; only {width} {'is' if width == 1 else 'are'} carried"
