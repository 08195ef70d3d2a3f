"""What the heats say of a kernel, in the words that every pane shares."""

from __future__ import annotations

from engine.state import ProblemState, SessionState, VariantState
from engine.verdict import Standing
from tui import format as fmt

NO_HEAT = "no heat with"
"""Begins what is said of kernels that no heat has timed side by side."""


def place_in_heat(standing: Standing) -> str:
    """How much longer than the fastest of its heat it took: ``first``, ``tied``, ``+3.1%``."""
    if standing.ratio <= 1.0:
        return "first"
    return "tied" if standing.tied else fmt.change(standing.ratio - 1)


def last_heat(problem: ProblemState, variant: VariantState) -> str:
    """What the newest heat of the problem says of ``variant``, in a phrase; "" where there was none."""
    number = next((one.number for one in reversed(problem.rounds) if one.standings), None)
    if number is None:
        return ""
    heat = f"the heat of round {number}"
    standing = next((one for one in problem.standings if one.variant == variant.id), None)
    first = problem.standings[0].variant
    if standing is None:
        return f"not in {heat}, which {first} won"
    place = place_in_heat(standing)
    if place == "first":
        tied = [one.variant for one in problem.standings if one.tied and one.ratio > 1.0]
        return f"first in {heat}" + (f", tied with {', '.join(tied)}" if tied else "")
    return f"tied with {first} in {heat}" if place == "tied" else f"{place} time of {first} in {heat}"


def why_no_star(state: SessionState, variant: VariantState) -> str:
    """Why ``variant``, which has more speedup or fewer milliseconds than the best, is not the best, in two or three
    words: its verdict is of another minute. "" where there is nothing to explain."""
    problem = state.problems.get(variant.problem)
    best = state.variants.get(problem.best or "") if problem is not None else None
    if problem is None or best is None or best is variant or variant.speedup is None or state.is_pruned(variant.id):
        return ""
    if variant.speedup <= (best.speedup or 0.0) and (variant.kernel_ms or 0.0) >= (best.kernel_ms or 0.0):
        return ""
    timed = {standing.variant: standing for standing in problem.standings}
    own, first = timed.get(variant.id), timed.get(best.id)
    if own is None or first is None or first.ratio > 1.0:
        return f"{NO_HEAT} {best.id}"
    return "tied in heat" if own.tied else f"heat {place_in_heat(own)}"


def decided_after(problem: ProblemState, variant: VariantState) -> int | None:
    """The newest round at whose end ``variant`` was carried or dropped."""
    for round_ in reversed(problem.rounds):
        if any(one.variant == variant.id for one in (*round_.survivors, *round_.dropped)):
            return round_.number
    return None
