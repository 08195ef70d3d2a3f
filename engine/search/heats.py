"""Who runs side by side in a problem's heat. Pure."""

from __future__ import annotations

from engine.state import SessionState, VariantState

HEAT_REACH = 0.8
"""Share of what the best factor is at least that a kernel's may be at most to run in a heat with it."""


def heat_leaders(state: SessionState, problem: str, places: int) -> list[VariantState]:
    """The fastest ``places``, without those that stand too far behind for a heat to change the order.

    How far is a matter of the 95 % intervals, not of the factors: those of a disturbed minute are wide, and a heat
    is what tells such kernels apart. The one with the least milliseconds is always among them: a factor also
    depends on how the reference fared. So are the best so far, the one whose place it took by a verdict alone, and
    the last heat's winner: nobody takes the place of the best who has not met it.
    """
    if places < 2 or (found := state.problems.get(problem)) is None:
        return []
    correct = state.leaders(problem)
    leaders = correct[:places]
    reach = HEAT_REACH * (_at_least(leaders[0]) if leaders else 0.0)
    near = [leader for leader in leaders if _at_most(leader) >= reach]
    quickest = min(correct, key=lambda variant: variant.kernel_ms or float("inf"), default=None)
    winner = found.standings[0].variant if found.standings else None
    always = (quickest.id if quickest is not None else None, found.best, found.former, winner)
    met = {leader.id for leader in near}
    others = [name for name in dict.fromkeys(always) if name is not None and name not in met]
    valid = {leader.id: leader for leader in correct}
    return [*near, *(valid[name] for name in others if name in valid)]


def _at_least(variant: VariantState) -> float:
    """Lower end of the factor's 95 % interval."""
    verdict = variant.verdict
    return (verdict and verdict.speedup_low) or variant.speedup or 0.0


def _at_most(variant: VariantState) -> float:
    """Upper end of the factor's 95 % interval."""
    verdict = variant.verdict
    return (verdict and verdict.speedup_high) or variant.speedup or 0.0
