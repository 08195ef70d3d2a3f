"""Input and output of strategies, and the text of their reasons. All functions are pure.

All strategies obey the same laws (``tests/engine/strategy_laws.py`` checks them). A strategy selects or drops each
candidate, with a reason. It selects every pinned kernel, and drops exhausted kernels unless they are pinned. If any
kernel is not exhausted, it selects at least one kernel that is not exhausted. The candidates' order has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from engine.session.records.events import Selected
from engine.session.records.speedup_text import WIDE, beside, marked, relative_width, speedup
from engine.session.state.ranking import reached_in_runoff


class Candidate(Struct, frozen=True, kw_only=True):
    """A correct kernel that may become a parent of the next round.

    ``ms``: median time. ``speedup``: over eager. ``speedup_low`` and ``speedup_high``: the bounds of the speedup's 95%
    interval, or None without an interval. ``round``: the round of the kernel's verdict. ``category``: its idea's
    category. ``lineage_categories``: the categories of all ideas in its lineage. ``runoff_ratio``: its time / the
    fastest leader's time in the latest runoff; None if the runoff did not include it. ``runoff_tied``: whether the
    runoff could not distinguish it from the fastest leader. ``uncertain``: whether the speedup is uncertain, possibly
    for a reason other than its interval. ``busy``: whether other programs used much of the CPU during timing.
    ``best``: whether it is the problem's best kernel. ``exhausted``: whether no proposer has a new idea for it.
    """

    variant: str
    idea: str
    round: int
    ms: float
    speedup: float
    category: str
    speedup_low: float | None = None
    speedup_high: float | None = None
    uncertain: bool = False
    busy: bool = False
    lineage_categories: frozenset[str] = frozenset()
    runoff_ratio: float | None = None
    runoff_tied: bool = False
    best: bool = False
    pinned: bool = False
    exhausted: bool = False

    @property
    def is_uncertain(self) -> bool:
        """Whether the speedup is uncertain for any reason."""
        return self.uncertain or relative_width(self.speedup, self.speedup_low, self.speedup_high) > WIDE

    @property
    def speedup_words(self) -> str:
        """Speedup over eager as text."""
        return marked(speedup(self.speedup), self.is_uncertain)


class Selection(Struct, frozen=True):
    """Selected and dropped kernels, each fastest first."""

    selected: tuple[Selected, ...]
    dropped: tuple[Selected, ...]


class Strategy(Protocol):
    """Select the parents of the round after ``round_number``.

    ``width`` is the maximum number of parents, in addition to pinned kernels. ``seed`` determines the choices of a
    random strategy. A strategy is deterministic: equal arguments give equal selections.
    """

    def __call__(self, candidates: Sequence[Candidate], *, round_number: int, width: int, seed: int) -> Selection: ...


def _place(one: Candidate) -> tuple[float, str]:
    return one.runoff_ratio or 0.0, one.variant


def ranking(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Sort by speed: kernels in the latest runoff by ratio, other kernels by speedup relative to the runoff's winner.

    If the best kernel tied with the fastest kernel in the runoff, the best comes first, because its speedup is more
    certain.
    """
    timed = sorted((one for one in candidates if one.runoff_ratio is not None), key=_place)
    least = (timed[0].runoff_ratio or 1.0) if timed else 1.0
    reached = reached_in_runoff([(one.speedup, (one.runoff_ratio or 1.0) / least) for one in timed]) if timed else 1.0

    def relative_time(one: Candidate) -> tuple[float, str]:
        if one.best and one.runoff_tied:
            return 0.0, one.variant
        return one.runoff_ratio / least if one.runoff_ratio is not None else reached / one.speedup, one.variant

    return sorted(candidates, key=relative_time)


def slowdown(one: Candidate, best: Candidate) -> float:
    """Return the time of ``one`` / the time of ``best``, from the runoff if it included both kernels."""
    if one.runoff_ratio is not None and best.runoff_ratio is not None:
        return one.runoff_ratio / best.runoff_ratio
    return best.speedup / one.speedup


def answer(ranked: Sequence[Candidate], selected_because: Mapping[str, str], dropped: Mapping[str, str]) -> Selection:
    """Select pinned kernels and kernels with a reason in ``selected_because``. Drop the rest of ``ranked``.

    For an exhausted kernel, exhaustion overrides the reason in ``dropped``.
    """
    why = dict(selected_because)
    for one in ranked:
        if one.pinned:
            why[one.variant] = f"pinned by hand, {milliseconds(one.ms)}" + (
                f"; {why[one.variant]}" if one.variant in why else ""
            )
    return Selection(
        tuple(Selected(one.variant, why[one.variant]) for one in ranked if one.variant in why),
        tuple(
            Selected(one.variant, why_exhausted(one) if one.exhausted else dropped[one.variant])
            for one in ranked
            if one.variant not in why
        ),
    )


# Text for reasons.


def why_fast(one: Candidate, ranked: Sequence[Candidate], rank: int) -> str:
    if one is ranked[0]:
        where = "in the runoff; its verdict" if one.runoff_ratio is not None else "by its own verdict"
        if (one.runoff_ratio or 1.0) > 1.0:
            return f"the best kernel, tied {where}: {milliseconds(one.ms)}, {one.speedup_words} over eager"
        return f"fastest {where}: {milliseconds(one.ms)}, {one.speedup_words} over eager"
    place = "the fastest with untried ideas" if rank == 1 else f"number {rank} by speed"
    return f"{place}: {against(one, ranked[0], ranked)}"


def why_exhausted(one: Candidate) -> str:
    return f"no proposer has a new idea for this kernel ({milliseconds(one.ms)}, {one.speedup_words} over eager)"


def against(one: Candidate, best: Candidate, ranked: Sequence[Candidate]) -> str:
    """Describe how the times of ``one`` and ``best`` compare: in the runoff if it included both, otherwise by their
    verdicts.

    Kernels in a runoff rank relative to the winner's speedup, so a kernel may rank behind another kernel with a lower
    speedup. ``ranked`` contains all candidates in the order of :func:`ranking`.
    """
    if one.runoff_ratio is not None and best.runoff_ratio is not None:
        return _in_runoff(one, best)
    own = _by_verdicts(one, best)
    if one.speedup <= best.speedup or ranked.index(one) < ranked.index(best):
        return own
    if one.runoff_ratio is None:
        return f"behind {best.variant}, which leads because of the runoff; {own}"
    winner = next(other for other in ranked if other.runoff_ratio is not None)
    said = f"by its own verdict, {one.variant} was {beside(slowdown(one, best), best.variant)} ({one.speedup_words})"
    return f"{_in_runoff(one, winner)}; {winner.variant} was {_by_verdicts(winner, best)}; {said}"


def _in_runoff(one: Candidate, best: Candidate) -> str:
    if one.runoff_tied and (best.runoff_tied or (best.runoff_ratio or 0.0) <= 1.0):
        return f"tied with {best.variant} in the runoff"
    return f"{beside(slowdown(one, best), best.variant)} in the runoff"


def _by_verdicts(one: Candidate, best: Candidate) -> str:
    speedups = f"({one.speedup_words} against {best.speedup_words} over eager)"
    slower, faster = sorted((one, best), key=lambda candidate: candidate.speedup)
    if (slower.speedup_high or slower.speedup) >= (faster.speedup_low or faster.speedup):
        return f"indistinguishable from {best.variant} by separate verdicts {speedups}"
    compared = beside(slowdown(one, best), best.variant)
    if not (one.is_uncertain or best.is_uncertain):
        return f"{compared} by separate verdicts {speedups}"
    busy = ", judged on a busy machine" if one.busy or best.busy else ""
    return f"about {compared} by uncertain verdicts{busy} {speedups}"


def milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"
