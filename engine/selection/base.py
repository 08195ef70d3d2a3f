"""What every strategy sees and answers, and the words that reasons share. Pure: figures in, names and reasons out.

The laws that hold for each of them (``tests/engine/strategy_laws.py`` checks all on any): every candidate is carried
or dropped once, with a reason; what is pinned is carried; what is exhausted is not, unless it is pinned; while any
kernel is open, one is carried; the answer does not depend on the order of the candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from engine.events import Carried
from engine.factor import interval_factor
from engine.ranking import reached_in_heat


class Candidate(Struct, frozen=True, kw_only=True):
    """One correct kernel that may be carried on.

    ``ms``: its median time. ``speedup``: factor over eager. ``round``: the round it was judged in.
    ``speedup_low`` and ``speedup_high``: its 95 % interval, None where that is not known.
    ``category``: of its own idea; ``lineage_categories``: of all ideas that it descends from, its own included.
    ``heat_ratio``: its time / the fastest leader's, from the latest heat; None where it did not run in it.
    ``heat_tied``: no difference between the two could be told there.
    ``exhausted``: no proposer has anything new for it, or none had when it was a parent.
    """

    variant: str
    idea: str
    round: int
    ms: float
    speedup: float
    category: str
    speedup_low: float | None = None
    speedup_high: float | None = None
    lineage_categories: frozenset[str] = frozenset()
    heat_ratio: float | None = None
    heat_tied: bool = False
    pinned: bool = False
    exhausted: bool = False

    @property
    def factor(self) -> str:
        """Over eager, in words."""
        return interval_factor(self.speedup, self.speedup_low, self.speedup_high)


class Selection(Struct, frozen=True):
    """Both in order, fastest first."""

    survivors: tuple[Carried, ...]
    dropped: tuple[Carried, ...]


class Strategy(Protocol):
    """Chooses who is carried on after ``round_number``.

    ``width``: how many places there are beside those of pinned kernels; a strategy may leave some empty. ``seed``: of
    this choice, for a strategy that draws; the same arguments give the same answer.
    """

    def __call__(self, candidates: Sequence[Candidate], *, round_number: int, width: int, seed: int) -> Selection: ...


def _place(one: Candidate) -> tuple[float, str]:
    return one.heat_ratio or 0.0, one.variant


def ranking(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Fastest first: those of the latest heat by their ratio in it, the others by their factor against its winner's."""
    heated = sorted((one for one in candidates if one.heat_ratio is not None), key=_place)
    least = (heated[0].heat_ratio or 1.0) if heated else 1.0
    reached = reached_in_heat([(one.speedup, (one.heat_ratio or 1.0) / least) for one in heated]) if heated else 1.0

    def relative_time(one: Candidate) -> tuple[float, str]:
        return one.heat_ratio / least if one.heat_ratio is not None else reached / one.speedup, one.variant

    return sorted(candidates, key=relative_time)


def slowdown(one: Candidate, best: Candidate) -> float:
    """Its time / the best one's, from the heat where both ran in it."""
    if one.heat_ratio is not None and best.heat_ratio is not None:
        return one.heat_ratio / best.heat_ratio
    return best.speedup / one.speedup


def answer(ranked: Sequence[Candidate], carried: Mapping[str, str], dropped: Mapping[str, str]) -> Selection:
    """The selection of ``ranked``: those with a reason in ``carried``, and every pinned one; the rest is dropped.

    A kernel that is exhausted is dropped for that reason, whatever ``dropped`` says of it.
    """
    why = dict(carried)
    for one in ranked:
        if one.pinned:
            why[one.variant] = f"pinned by hand, {milliseconds(one.ms)}" + (
                f"; {why[one.variant]}" if one.variant in why else ""
            )
    return Selection(
        tuple(Carried(one.variant, why[one.variant]) for one in ranked if one.variant in why),
        tuple(
            Carried(one.variant, why_exhausted(one) if one.exhausted else dropped[one.variant])
            for one in ranked
            if one.variant not in why
        ),
    )


# Words


def why_fast(one: Candidate, ranked: Sequence[Candidate], rank: int) -> str:
    if one is ranked[0]:
        where = "in the heat" if one.heat_ratio is not None else "by its own verdict"
        return f"fastest {where}: {milliseconds(one.ms)}, {one.factor} eager"
    place = "the fastest that a proposer has something new for" if rank == 1 else f"number {rank} of the fastest"
    return f"{place}: {against(one, ranked[0], ranked)}"


def why_exhausted(one: Candidate) -> str:
    return f"no proposer has anything new for it at {milliseconds(one.ms)}, {one.factor} eager"


def against(one: Candidate, best: Candidate, ranked: Sequence[Candidate]) -> str:
    """How much slower ``one`` is than ``best``, and by which comparison: the heat, or a verdict of each one's own. A
    difference that cannot be told is none. ``ranked`` holds all, in the order of :func:`ranking`.

    What ran in the heat stands by the factor of its winner, so a kernel may come behind one that its own verdict beats.
    """
    if one.heat_ratio is not None and best.heat_ratio is not None:
        return _in_heat(one, best)
    own = _by_verdicts(one, best)
    if one.speedup <= best.speedup or ranked.index(one) < ranked.index(best):
        return own
    if one.heat_ratio is None:
        return f"behind {best.variant}, which leads by the heat; {own}"
    winner = next(other for other in ranked if other.heat_ratio is not None)
    said = f"its own verdict had said {_percent(slowdown(one, best))} ({one.factor})"
    return f"{_in_heat(one, winner)}, and that {_by_verdicts(winner, best)}; {said}"


def _in_heat(one: Candidate, best: Candidate) -> str:
    if one.heat_tied and (best.heat_tied or (best.heat_ratio or 0.0) <= 1.0):
        return f"tied with {best.variant} in the heat"
    return f"{_percent(slowdown(one, best))} than {best.variant} in the heat"


def _by_verdicts(one: Candidate, best: Candidate) -> str:
    factors = f"({one.factor} against {best.factor} eager)"
    slower, faster = sorted((one, best), key=lambda candidate: candidate.speedup)
    if (slower.speedup_high or slower.speedup) >= (faster.speedup_low or faster.speedup):
        return f"not told apart from {best.variant} by their own verdicts {factors}"
    return f"{_percent(slowdown(one, best))} than {best.variant} by their own verdicts {factors}"


def _percent(slowdown: float) -> str:
    percent = (slowdown - 1.0) * 100.0
    return f"{abs(percent):.0f} % {'slower' if percent >= 0 else 'faster'}"


def milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"
