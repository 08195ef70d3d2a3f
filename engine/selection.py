"""Who is carried on to the next round, and why. Pure: figures in, names and reasons out.

A strategy is a function (:class:`Strategy`). It sees the correct, unpruned kernels of one problem and answers with
survivors (the parents of the next round) and with drops, each with one plain sentence.

The beam keeps the fastest, but not only them: in the trajectories that Stanford CRFM published ("fast kernels",
2025), several rounds were slower than the best so far and still led on, and carrying only the global best hurts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from engine.events import Carried
from engine.proposers.protocol import CATEGORY_NAMES

PROMISING_SLOWDOWN = 1.5
"""A promising kernel may take up to this many times the best kernel's time."""


class Candidate(Struct, frozen=True, kw_only=True):
    """One correct kernel that may be carried on.

    ``ms``: its median time. ``speedup``: factor over eager. ``round``: the round it was judged in.
    ``category``: of its own idea; ``lineage_categories``: of all ideas that it descends from, its own included.
    ``heat_ratio``: its time / the fastest leader's, from the latest heat; None where it did not run in it.
    ``exhausted``: it was a parent before and no proposer had anything new for it.
    """

    variant: str
    idea: str
    round: int
    ms: float
    speedup: float
    category: str
    lineage_categories: frozenset[str] = frozenset()
    heat_ratio: float | None = None
    pinned: bool = False
    exhausted: bool = False


class Selection(Struct, frozen=True):
    """Both in order, fastest first."""

    survivors: tuple[Carried, ...]
    dropped: tuple[Carried, ...]


class Strategy(Protocol):
    """Chooses at most ``width`` kernels, besides those that are pinned or promising, after ``round_number``."""

    def __call__(self, candidates: Sequence[Candidate], *, round_number: int, width: int) -> Selection: ...


def beam(candidates: Sequence[Candidate], *, round_number: int, width: int) -> Selection:
    """The ``width`` fastest, not all from one idea; every pinned one; one promising newcomer for one round."""
    ranked = ranking(candidates)
    if not ranked:
        return Selection((), ())
    best = ranked[0]
    open_ones = [one for one in ranked if one.pinned or not one.exhausted]
    fastest = _diverse([one for one in open_ones if not one.exhausted], width)
    why: dict[str, str] = {one.variant: _why_fast(one, best, rank) for rank, one in enumerate(fastest, start=1)}
    if (newcomer := _promising(open_ones, fastest, best, round_number)) is not None:
        why[newcomer.variant] = (
            f"promising: opens {CATEGORY_NAMES.get(newcomer.category, newcomer.category)}, "
            f"{_against(newcomer, best)}; carried for one round"
        )
    for one in ranked:
        if one.pinned:
            why[one.variant] = f"pinned by hand, {_ms(one.ms)}" + (
                f"; {why[one.variant]}" if one.variant in why else ""
            )
    survivors = tuple(Carried(one.variant, why[one.variant]) for one in ranked if one.variant in why)
    dropped = tuple(
        Carried(one.variant, _why_dropped(one, best, fastest, width)) for one in ranked if one.variant not in why
    )
    return Selection(survivors, dropped)


STRATEGIES: dict[str, Strategy] = {"beam": beam}


def ranking(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Fastest first: those of the latest heat by their ratio in it, the others by their factor against its winner's."""
    heated = [one for one in candidates if one.heat_ratio is not None]
    winner = min(heated, key=lambda one: one.heat_ratio or 0.0, default=None)

    def relative_time(one: Candidate) -> float:
        if one.heat_ratio is not None and winner is not None:
            return one.heat_ratio / (winner.heat_ratio or 1.0)
        return (winner.speedup if winner is not None else 1.0) / one.speedup

    return sorted(candidates, key=relative_time)


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
        if one.category not in known and _slowdown(one, best) <= PROMISING_SLOWDOWN:
            return one
    return None


def _slowdown(one: Candidate, best: Candidate) -> float:
    """Its time / the best one's, from the heat where both ran in it."""
    if one.heat_ratio is not None and best.heat_ratio is not None:
        return one.heat_ratio / best.heat_ratio
    return best.speedup / one.speedup


def _why_fast(one: Candidate, best: Candidate, rank: int) -> str:
    if one is best:
        return f"fastest: {_ms(one.ms)}, {one.speedup:.2f}x eager"
    return f"number {rank} of the fastest: {_against(one, best)}"


def _why_dropped(one: Candidate, best: Candidate, fastest: Sequence[Candidate], width: int) -> str:
    if one.exhausted:
        return f"nothing new left to try on it at {_ms(one.ms)}, {one.speedup:.2f}x eager"
    siblings = [other.variant for other in fastest if other.idea == one.idea]
    if len(siblings) >= max(1, width - 1) and fastest and _slowdown(one, best) <= _slowdown(fastest[-1], best):
        return f"{_ms(one.ms)}, but {' and '.join(siblings)} of the same idea {one.idea} are carried already"
    return f"{_against(one, best)}; only {width} are carried"


def _against(one: Candidate, best: Candidate) -> str:
    percent = (_slowdown(one, best) - 1.0) * 100.0
    if one.heat_ratio is not None and best.heat_ratio is not None:
        return f"{percent:.0f} % slower than {best.variant} side by side"
    return f"{percent:.0f} % slower than {best.variant} ({one.speedup:.2f}x against {best.speedup:.2f}x eager)"


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"
