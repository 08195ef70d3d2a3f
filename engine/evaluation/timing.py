"""Statistics of paired timings. Pure.

Reference and kernel run in alternating pairs on the same data; the estimate is the median of the pair ratios, its
interval comes from order statistics (binomial, no distribution assumed).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import comb
from statistics import median

from engine.verdict import Timing

CONFIDENCE = 0.95


@cache
def interval_ranks(count: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Indices (from 0) into ``count`` sorted samples that bound the median with ``confidence``.

    None where there are too few samples for it (fewer than 6 at 95 %).
    """
    tail, cumulative, rank = (1 - confidence) / 2, 0.0, -1
    total = 2.0**count
    for k in range(count // 2 + 1):
        cumulative += comb(count, k) / total
        if cumulative > tail:
            break
        rank = k
    return (rank, count - 1 - rank) if rank >= 0 else None


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Median with the bounds of its 95 % interval; the extremes where there are too few samples."""
    ordered = sorted(samples)
    low, high = interval_ranks(len(ordered)) or (0, len(ordered) - 1)
    return median(ordered), ordered[low], ordered[high]


def is_settled(ratios: Sequence[float], relative_half_width: float, least: int) -> bool:
    """Whether the interval of the median is within ``relative_half_width`` on both sides."""
    if len(ratios) < least:
        return False
    middle, low, high = median_interval(ratios)
    return high - middle <= relative_half_width * middle and middle - low <= relative_half_width * middle


def summarize(times_ms: Sequence[float]) -> Timing:
    """Median, 10th and 90th percentile. Raises ``ValueError`` for no samples."""
    if not times_ms:
        raise ValueError("no times to summarize")
    ordered = sorted(times_ms)
    last = len(ordered) - 1
    return Timing(median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)], len(ordered))
