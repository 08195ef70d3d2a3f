"""Format a speedup over eager for display: ``1.57x``, with a mark if the speedup is uncertain."""

from __future__ import annotations

WIDE = 0.2
"""A speedup counts as uncertain if its 95% interval has at least this relative width."""
MARK = "~"
UNSURE = f"{MARK}: uncertain: 95% interval wider than a fifth of the speedup, or other programs were running"
"""Footnote for tables that contain the mark."""


def speedup(value: float | None) -> str:
    """Format a speedup: ``3.12x``, ``104x``; ``-`` for None."""
    if value is None:
        return "-"
    return f"{value:.2f}x" if value < 99.995 else f"{value:.0f}x"


def relative_width(value: float | None, low: float | None, high: float | None) -> float:
    """Return the interval's width relative to the speedup; 0 if either is unknown."""
    if not value or low is None or high is None:
        return 0.0
    return (high - low) / value


def has_wide_interval(value: float | None, low: float | None, high: float | None) -> bool:
    """Whether the interval from ``low`` to ``high`` is wider than a fifth of the speedup."""
    return relative_width(value, low, high) > WIDE


def marked_speedup(value: float | None, low: float | None, high: float | None) -> str:
    """Format a speedup with its mark: ``1.57x``, or ``~1.57x`` if uncertain."""
    return marked(speedup(value), has_wide_interval(value, low, high))


def marked(figure: str, unsure: bool) -> str:
    return f"{MARK}{figure}" if unsure else figure
