"""Format a verdict's remarks, and format speedups and times, with ``~`` for uncertain figures."""

from __future__ import annotations

import math
import re

from engine.session.records.speedup_text import marked, sol_percent, speedup
from engine.session.records.verdict import Verdict
from engine.session.records.verdict_text import is_comparison_uncertain, is_uncertain
from engine.session.state.comparable import figures_of
from engine.session.state.over_compile import over_compile
from engine.session.state.session_state import ProblemState, RoundState, SessionState, VariantState
from tui.text.format import milliseconds

PER_SEARCH = "measured once per search"
"""Argument ``measured`` of ``sol_words`` for a kernel from a search."""
_NOTED = 0.01
"""Smallest relative change in a round's speedup that the program shows."""
_FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?=x?(?!\w|\.\d))")


def sol_words(verdict: Verdict, measured: str = "") -> str | None:
    """Format a kernel's % SOL with the two times that it compares, or return None if the % SOL is unknown.

    The lower bound follows from the device's measured peaks. ``measured`` says when they were measured.
    """
    if verdict.sol_share is None or verdict.kernel is None:
        return None
    bound = f"SOL {milliseconds(verdict.sol_ms)} ms" + (f" ({measured})" if measured else "")
    return f"{sol_percent(verdict.sol_share)}% = {bound} / kernel {milliseconds(verdict.kernel.median_ms)} ms"


def remarks_of(verdict: Verdict) -> list[str]:
    """Return the verdict's remarks. Each timing process adds its own.

    If remarks differ only in their figures, return only the remark with the largest figures.
    """
    shown: dict[str, str] = {}
    for flag in sorted(verdict.flags, key=lambda flag: [float(figure) for figure in _FIGURE.findall(flag)]):
        shown[_FIGURE.sub("#", flag)] = flag
    kinds = dict.fromkeys(_FIGURE.sub("#", flag) for flag in verdict.flags)
    return [shown[kind] for kind in kinds]


def comparable_words(state: SessionState, variant: VariantState | None) -> str:
    """Format a kernel's comparable speedup (``engine.session.state.comparable``), or return ``-`` if there is none."""
    figures = figures_of(state, variant) if variant is not None else None
    return marked(speedup(figures.speedup), figures.uncertain) if figures is not None else speedup(None)


def comparable_ms(state: SessionState, variant: VariantState | None) -> str:
    """Format a kernel's comparable time in milliseconds, or return ``-`` if there is none."""
    figures = figures_of(state, variant) if variant is not None else None
    return milliseconds((figures.ms or None) if figures is not None else None)


def round_speedup_words(state: SessionState, problem: str, number: int) -> str:
    """Format a round's speedup, which is the comparable speedup of its leader."""
    return comparable_words(state, state.leader_of_round(problem, number))


def correction_words(state: SessionState, round_: RoundState) -> str:
    """Format the speedup that a round had at its end as ``was 2.31x``.

    Return "" unless later runoffs, verdicts or prunes changed it by at least 1%.
    """
    if round_.finished_at is None or round_.speedup is None:
        return ""
    leader = state.leader_of_round(round_.problem, round_.number)
    now = figures_of(state, leader) if leader is not None else None
    if now is not None and math.isclose(now.speedup, round_.speedup, rel_tol=_NOTED):
        return ""
    return f"was {speedup(round_.speedup)}"


def over_compile_words(problem: ProblemState, variant: VariantState) -> str | None:
    """Format the speedup over ``torch.compile``, or return None if torch.compile has not been timed.

    The result has an uncertainty mark if the baseline's or the kernel's time is uncertain.
    """
    ahead = over_compile(problem, variant.verdict)
    return marked(speedup(ahead), over_compile_is_uncertain(problem, variant)) if ahead is not None else None


def over_compile_is_uncertain(problem: ProblemState, variant: VariantState) -> bool:
    """Return whether other programs disturbed the comparison, or the kernel's own speedup is uncertain."""
    compiled = problem.baselines.get("compile")
    if compiled is None or variant.verdict is None:
        return is_uncertain(variant.verdict)
    return is_comparison_uncertain(variant.verdict, compiled, problem.baselines.get("eager"))


def interval_words(verdict: Verdict | None) -> str:
    """Format the 95% interval as ``[1.35, 1.64]``, or return "" if it is unknown."""
    if verdict is None or verdict.speedup_low is None or verdict.speedup_high is None:
        return ""
    low, high = (speedup(end).removesuffix("x") for end in (verdict.speedup_low, verdict.speedup_high))
    return f"[{low}, {high}]"
