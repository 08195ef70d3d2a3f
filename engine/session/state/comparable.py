"""Comparable figures of a problem's kernels: the times and speedups that tables show side by side.

A comparison in a runoff replaces the comparison of verdicts. A kernel that a runoff timed has the figures of the
problem's best kernel, scaled by the ratio of their times in the runoff. Every other kernel has the figures of its own
verdict. All functions are pure.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.session.records.verdict_text import is_uncertain
from engine.session.state.nodes import ProblemState, VariantState
from engine.session.state.session_data import SessionData


class Figures(NamedTuple):
    """A kernel's figures in a table.

    ``scaled``: the kernel whose verdict a runoff scaled; "" if the figures come from this kernel's verdict.
    ``uncertain``: whether this kernel's verdict or the scaled verdict is uncertain.
    """

    speedup: float
    ms: float
    uncertain: bool
    scaled: str = ""


def figures_of(state: SessionData, variant: VariantState) -> Figures | None:
    """Return the kernel's comparable figures, or None if the kernel has no speedup."""
    if variant.speedup is None or variant.verdict is None:
        return None
    problem = state.problems.get(variant.problem)
    name, ratio = problem.relative.get(variant.id, ("", 1.0)) if problem is not None else ("", 1.0)
    uncertain = is_uncertain(variant.verdict)
    against = state.variants.get(name)
    if against is None or against is variant or against.speedup is None or against.verdict is None:
        return Figures(variant.speedup, variant.kernel_ms or 0.0, uncertain)
    uncertain |= is_uncertain(against.verdict)
    return Figures(against.speedup / ratio, (against.kernel_ms or 0.0) * ratio, uncertain, name)


def comparable_speedup(state: SessionData, variant: VariantState) -> float:
    """Return the kernel's comparable speedup, or 0 without one."""
    figures = figures_of(state, variant)
    return figures.speedup if figures is not None else 0.0


def relative_times(
    state: SessionData, problem: ProblemState, best: VariantState | None, winner: VariantState | None
) -> dict[str, tuple[str, float]]:
    """Return, for each kernel that a runoff timed, the kernel whose figures to scale and the ratio of the two times.

    The newest runoff that timed a kernel determines its ratio; uncertain results do not count. ``winner`` won the last
    runoff. A later verdict may have made another kernel the best. The ratios then refer to the winner, because no
    runoff has confirmed the best kernel's lead.
    """
    first = winner or best
    found = {first.id: (first.id, 1.0)} if first is not None else {}
    for round_ in reversed(problem.rounds):
        counted = [one for one in round_.standings if one.ratio > 0 and one.decides]
        timed = [one for one in counted if state.variants[one.variant].speedup is not None]
        known = next((one for one in timed if one.variant in found), timed[0] if timed else None)
        if known is None:
            continue
        name, ratio = found.get(known.variant, (known.variant, 1.0))
        for one in timed:
            found.setdefault(one.variant, (name, ratio * one.ratio / known.ratio))
    if best is not None:
        found[best.id] = (best.id, 1.0)
    return found
