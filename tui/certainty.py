"""How sure a factor over eager is: its 95 % interval, and a mark where that is wide and there is no room for it."""

from __future__ import annotations

from engine.state import SessionState
from engine.verdict import WIDE, Verdict, relative_width
from tui import format as fmt

MARK = "~"
UNSURE = f"{MARK}: hardly known: 95 % interval wider than a fifth, or other programs ran too"
"""What stands under a table with a mark."""


def factor_words(verdict: Verdict | None) -> str:
    """``1.57x``; ``~1.57x`` where its interval is wider than a fifth of it."""
    return interval_factor(verdict.speedup, verdict.speedup_low, verdict.speedup_high) if verdict is not None else "-"


def interval_factor(factor: float | None, low: float | None, high: float | None) -> str:
    """The same of a factor with the ends of its interval."""
    return marked(fmt.speedup(factor), relative_width(factor, low, high) > WIDE)


def round_factor_words(state: SessionState, problem: str, number: int) -> str:
    """The best factor of a round, marked where it is its leader's own."""
    leader, best = state.leader_of_round(problem, number), state.best_of_round(problem, number)
    own = leader is not None and abs((leader.speedup or 0.0) - (best or 0.0)) < 1e-9
    return factor_words(leader.verdict) if leader is not None and own else fmt.speedup(best)


def marked(figure: str, unsure: bool) -> str:
    return f"{MARK}{figure}" if unsure else figure


def is_unsure(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.hardly_known


def interval_words(verdict: Verdict | None) -> str:
    """``[1.35, 1.64]``, "" where it is not known."""
    if verdict is None or verdict.speedup_low is None or verdict.speedup_high is None:
        return ""
    low, high = (fmt.speedup(end).removesuffix("x") for end in (verdict.speedup_low, verdict.speedup_high))
    return f"[{low}, {high}]"
