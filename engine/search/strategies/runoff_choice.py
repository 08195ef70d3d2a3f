"""Choose the kernels for a problem's runoff. All functions are pure."""

from __future__ import annotations

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


def _at_least(variant: VariantState) -> float:
    """Return the lower bound of the speedup's 95% interval."""
    verdict = variant.verdict
    return (verdict and verdict.speedup_low) or variant.speedup or 0.0


def _at_most(variant: VariantState) -> float:
    """Return the upper bound of the speedup's 95% interval."""
    verdict = variant.verdict
    return (verdict and verdict.speedup_high) or variant.speedup or 0.0
