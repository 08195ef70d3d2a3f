"""The change in speedup from one kernel to another: from a parent to its child, or from round to round."""

from __future__ import annotations

from typing import NamedTuple

from engine.session.records.speedup_text import marked
from engine.session.records.verdict_text import is_uncertain
from engine.session.state.comparable import figures_of
from engine.session.state.session_state import ProblemState, SessionState, VariantState
from tui.text import format as fmt
from tui.text.runoff_text import side_by_side

SIDE_BY_SIDE = "r"
"""Mark of a change that a runoff measured."""
LEGEND = (
    f"{SIDE_BY_SIDE} before a change: measured side by side in a runoff; other changes compare two verdicts, or two "
    "figures that runoffs scaled"
)


class Change(NamedTuple):
    """A relative change in speedup: 0.04 is four percent faster.

    ``side_by_side`` is true if a runoff timed both kernels. ``uncertain`` is true if this runoff's result is
    uncertain, or if no runoff timed both kernels and one of the two speedups is uncertain.
    """

    value: float
    side_by_side: bool
    uncertain: bool = False


def change_words(change: Change | None) -> str:
    """Format a change as ``+4.2%``, as ``r+4.2%`` if a runoff measured it, or as ``~+4.2%`` if it is uncertain.

    Return "" for None.
    """
    if change is None:
        return ""
    return marked(f"{SIDE_BY_SIDE if change.side_by_side else ''}{fmt.change(change.value)}", change.uncertain)


def change_from(state: SessionState, before: VariantState | None, variant: VariantState) -> Change | None:
    """Return the change in speedup from ``before`` to ``variant``, or None if either has no speedup.

    The change comes from the newest runoff that timed both kernels. Without such a runoff, it comes from the
    kernels' comparable speedups, if both derive from the same verdict. Otherwise, it comes from the kernels' own
    verdicts, because a scaled figure is not comparable with another verdict.
    """
    old, new = figures_of(state, before) if before is not None else None, figures_of(state, variant)
    if before is None or old is None or new is None or not old.speedup:
        return None
    if (problem := state.problems.get(variant.problem)) is not None:
        timed = side_by_side(problem, before.id, variant.id)
        if timed is not None:
            return Change(timed.faster, side_by_side=True, uncertain=timed.uncertain)
    if (old.scaled or before.id) != (new.scaled or variant.id):
        own, against = variant.verdict, before.verdict
        if own is None or against is None or not own.speedup or not against.speedup:
            return None
        uncertain = is_uncertain(own) or is_uncertain(against)
        return Change(own.speedup / against.speedup - 1, side_by_side=False, uncertain=uncertain)
    return Change(new.speedup / old.speedup - 1, side_by_side=False, uncertain=old.uncertain or new.uncertain)


def change_against_parent(state: SessionState, variant: VariantState) -> Change | None:
    """Return the change from the kernel's parent to the kernel, or None if either has no speedup."""
    return change_from(state, state.variants.get(variant.parent or ""), variant)


def change_of_round(state: SessionState, problem: ProblemState, number: int) -> Change | None:
    """Return the change from the problem's best kernel at the end of the previous round to the round's leader."""
    leader = state.leader_of_round(problem.id, number)
    earlier = [one.number for one in problem.rounds if one.number < number]
    if leader is None or not earlier:
        return None
    return change_from(state, state.best_after_round(problem.id, max(earlier)), leader)
