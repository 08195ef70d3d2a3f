"""A factor over eager as a person reads it: ``1.57x``, and a mark where its 95 % interval is wide."""

from __future__ import annotations

WIDE = 0.2
"""Relative width of an interval from which a factor is hardly known."""
MARK = "~"
UNSURE = f"{MARK}: hardly known: 95 % interval wider than a fifth, or other programs ran too"
"""What stands under a table with a mark."""


def speedup(value: float | None) -> str:
    """A factor over the reference: ``3.12x``, ``104x``, ``-`` where there is none."""
    if value is None:
        return "-"
    return f"{value:.2f}x" if value < 99.995 else f"{value:.0f}x"


def relative_width(factor: float | None, low: float | None, high: float | None) -> float:
    """Of an interval, over the factor within; 0 where there is none."""
    if not factor or low is None or high is None:
        return 0.0
    return (high - low) / factor


def hardly_known(factor: float | None, low: float | None, high: float | None) -> bool:
    """Whether the interval from ``low`` to ``high`` is wider than a fifth of the factor."""
    return relative_width(factor, low, high) > WIDE


def interval_factor(factor: float | None, low: float | None, high: float | None) -> str:
    """``1.57x``; ``~1.57x`` where it is hardly known."""
    return marked(speedup(factor), hardly_known(factor, low, high))


def marked(figure: str, unsure: bool) -> str:
    return f"{MARK}{figure}" if unsure else figure
