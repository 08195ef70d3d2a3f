"""What the heats say of a kernel, in the words that every pane shares."""

from __future__ import annotations

from engine.state import ProblemState, VariantState
from engine.verdict import Standing
from tui import format as fmt


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


def decided_after(problem: ProblemState, variant: VariantState) -> int | None:
    """The newest round at whose end ``variant`` was carried or dropped."""
    for round_ in reversed(problem.rounds):
        if any(one.variant == variant.id for one in (*round_.survivors, *round_.dropped)):
            return round_.number
    return None
