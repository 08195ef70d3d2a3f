"""Format a speedup over eager and a % SOL for display, with the mark ``~`` and its footnotes.

Before a speedup or a time, the mark means that the figure is uncertain. Before a % SOL, it means that the figure is
above 100%.
"""

from __future__ import annotations

import re

WIDE = 0.2
"""Relative width of the 95% interval above which a speedup counts as uncertain."""
MARK = "~"
UNCERTAIN = f"{MARK}: uncertain, because the 95% interval is wide, other programs were running, or the host is slow"
"""Footnote for a marked speedup or time."""
POSSIBLE_CAUSES = (
    "data stays in caches, the algorithm needs fewer operations than SOL counts, the measured peaks are too low (a "
    "busy machine, or reads that are faster than copies), or the kernel skips work"
)
"""Causes of a % SOL above 100."""
WHY_ABOVE_SOL = f"above 100%; possible causes: {POSSIBLE_CAUSES}"
ABOVE_SOL = f"{MARK} before a % SOL: {WHY_ABOVE_SOL}"
"""Footnote for a marked % SOL."""
_TIMES = 1.995
"""Ratio of two times above which a reason says "2 times as slow" instead of "100% slower"."""
_PERCENT = re.compile(r"(\d{3,})% slower(?: than (\w+))?")


def speedup(value: float | None) -> str:
    """Format a speedup: ``3.12x``, ``104x``, ``0.042x``; ``-`` for None."""
    if value is None:
        return "-"
    if 0 < value < 0.0995:
        return f"{value:.3f}x" if value >= 0.0005 else "<0.001x"
    return f"{value:.2f}x" if value < 99.995 else f"{value:.0f}x"


def beside(slowdown: float, other: str = "") -> str:
    """Format a ratio of times: ``58% slower than v8`` or, for a ratio of 2 or more, ``2.5 times as slow as v8``.

    ``58% faster`` means 1.58 times as fast, as in the ``change`` column.
    """
    times = max(slowdown, 1 / slowdown)
    percent = 100.0 * (times - 1.0)
    if times < _TIMES:
        return f"{percent:.0f}% {'slower' if slowdown >= 1.0 else 'faster'}{f' than {other}' if other else ''}"
    figure = f"{times:.1f}".removesuffix(".0") if times < 10 else f"{times:.0f}"
    return f"{figure} times as {'slow' if slowdown >= 1.0 else 'fast'}{f' as {other}' if other else ''}"


def with_times(reason: str) -> str:
    """Update a reason from an earlier version: ``150% slower than v8`` becomes ``2.5 times as slow as v8``."""
    return _PERCENT.sub(lambda found: beside(1.0 + int(found[1]) / 100.0, found[2] or ""), reason)


def interval(low: float | None, high: float | None) -> str:
    """Format a speedup's 95% interval: ``1.18-1.28``; ``-`` if it is unknown."""
    if low is None or high is None:
        return "-"
    return "-".join(speedup(end).removesuffix("x") for end in (low, high))


def relative_width(value: float | None, low: float | None, high: float | None) -> float:
    """Return the interval's width relative to the speedup; 0 if either is unknown."""
    if not value or low is None or high is None:
        return 0.0
    return (high - low) / value


def is_above_sol(share: float | None) -> bool:
    """Return whether the % SOL, rounded to a whole percent as in all tables, is above 100.

    ``WHY_ABOVE_SOL`` lists the causes.
    """
    return share is not None and round(share * 100) > 100


def sol_percent(share: float | None) -> str:
    """Format SOL / time in percent: ``63``; ``~137`` if above 100%; ``-`` for None."""
    return marked(f"{share * 100:.0f}", is_above_sol(share)) if share is not None else "-"


def marked(figure: str, has_mark: bool) -> str:
    return f"{MARK}{figure}" if has_mark else figure


def footnotes(*, uncertain: bool, above_sol: bool) -> list[str]:
    """Return a table's footnotes: for marked speedups and times, and for a marked % SOL."""
    return [UNCERTAIN] * uncertain + [ABOVE_SOL] * above_sol
