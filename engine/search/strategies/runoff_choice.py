"""Choose the kernels for a problem's runoff, and compare its result with their verdicts. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from engine.evaluation.judge_policy import POLICY
from engine.session.records.verdict import Standing
from engine.session.state.ranking import reached_in_runoff
from engine.session.state.session_state import SessionState, VariantState

RUNOFF_REACH = 0.8
"""Minimum ratio at which a kernel takes part in a runoff: upper bound of its speedup / lower bound of the best kernel's
speedup.
"""


def runoff_leaders(state: SessionState, problem: str, places: int) -> list[VariantState]:
    """Choose the ``places`` fastest kernels, without those that are too slow to win a runoff.

    A kernel is too slow if the 95% interval of its speedup lies clearly below the best kernel's interval. These kernels
    always take part: the best, the previous best that a verdict displaced, the last runoff's winner, and the kernel
    with the shortest time. The kernel with the shortest time may not have the highest speedup, because speedups also
    depend on the reference's time.
    """
    if places < 2 or (found := state.problems.get(problem)) is None:
        return []
    correct = state.leaders(problem)
    leaders = correct[:places]
    reach = RUNOFF_REACH * (_at_least(leaders[0]) if leaders else 0.0)
    near = [leader for leader in leaders if _at_most(leader) >= reach]
    quickest = min(correct, key=lambda variant: variant.kernel_ms or float("inf"), default=None)
    winner = found.standings[0].variant if found.standings else None
    always = (quickest.id if quickest is not None else None, found.best, found.former, winner)
    met = {leader.id for leader in near}
    others = [name for name in dict.fromkeys(always) if name is not None and name not in met]
    valid = {leader.id: leader for leader in correct}
    return [*near, *(valid[name] for name in others if name in valid)]


def with_doubts(standings: Sequence[Standing], variants: Mapping[str, VariantState]) -> tuple[Standing, ...]:
    """Mark the standings that contradict the verdicts as uncertain, in addition to those that the judge marked.

    Each standing implies a speedup of the fastest kernel: the product of the kernel's own speedup and its ratio. A
    standing is uncertain if the interval of this product is further than a factor of ``RunoffPolicy.contradicts`` from
    the interval of the speedup that all standings imply.
    """
    own = [variants[one.variant] for one in standings]
    if any(variant.speedup is None for variant in own):  # A person pruned or retried a kernel during the runoff.
        return tuple(standings)
    lows = [(_at_least(variant), one.ratio_low) for one, variant in zip(standings, own, strict=True)]
    highs = [(_at_most(variant), one.ratio_high) for one, variant in zip(standings, own, strict=True)]
    factor = POLICY.runoff.contradicts
    most, least = factor * reached_in_runoff(highs), reached_in_runoff(lows) / factor
    return tuple(
        replace(one, uncertain=one.uncertain or low[0] * low[1] > most or high[0] * high[1] < least)
        for one, low, high in zip(standings, lows, highs, strict=True)
    )


def _at_least(variant: VariantState) -> float:
    """Return the lower bound of the speedup's 95% interval."""
    verdict = variant.verdict
    return (verdict and verdict.speedup_low) or variant.speedup or 0.0


def _at_most(variant: VariantState) -> float:
    """Return the upper bound of the speedup's 95% interval."""
    verdict = variant.verdict
    return (verdict and verdict.speedup_high) or variant.speedup or 0.0
