"""How sure a factor over eager is: its 95 % interval, and a mark where that is wide and there is no room for it."""

from __future__ import annotations

from engine.verdict import WIDE, Verdict
from tui import format as fmt

MARK = "~"


def factor_words(verdict: Verdict | None) -> str:
    """``1.57x``; ``~1.57x`` where its interval is wider than a fifth of it."""
    factor = verdict.speedup if verdict is not None else None
    return marked(fmt.speedup(factor), is_unsure(verdict))


def marked(figure: str, unsure: bool) -> str:
    return f"{MARK}{figure}" if unsure else figure


def is_unsure(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.relative_width > WIDE


def interval_words(verdict: Verdict | None) -> str:
    """``[1.35, 1.64]``, "" where it is not known."""
    if verdict is None or verdict.speedup_low is None or verdict.speedup_high is None:
        return ""
    low, high = (fmt.speedup(end).removesuffix("x") for end in (verdict.speedup_low, verdict.speedup_high))
    return f"[{low}, {high}]"
