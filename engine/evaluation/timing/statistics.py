"""Statistics of paired timings. All functions are pure.

The reference and the kernel run in pairs on the same data, in random order. The speedup estimate is the median of the
pairs' ratios, corrected for the order within each pair. The interval of the estimate uses order statistics (binomial,
distribution-free).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import comb, floor, sqrt
from statistics import NormalDist, median

from msgspec import Struct

from engine.evaluation.judge_policy import POLICY
from engine.session.records.verdict import Timing

_STATISTICS = POLICY.statistics
CONFIDENCE = _STATISTICS.confidence


def timing_processes(thorough: bool) -> int:
    """Return the number of processes whose pairs the judge pools for a verdict."""
    return POLICY.pairs.processes if thorough else 1


@cache
def interval_ranks(count: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Return indices (from 0) into ``count`` sorted samples that bound the median with ``confidence``.

    Returns None for too few samples (fewer than 6 at 95%).
    """
    tail, cumulative, rank = (1 - confidence) / 2, 0.0, -1
    if count > _STATISTICS.normal_above:
        rank = floor(count / 2 - NormalDist().inv_cdf(1 - tail) * sqrt(count) / 2) - 1
        return (rank, count - 1 - rank)
    total = 2.0**count
    for k in range(count // 2 + 1):
        cumulative += comb(count, k) / total
        if cumulative > tail:
            break
        rank = k
    return (rank, count - 1 - rank) if rank >= 0 else None


def without_order(ratios: Sequence[float], reference_first: Sequence[bool]) -> list[float]:
    """Return the pairs' ratios, corrected for the order within a pair.

    The second call finds different data in the caches. The function scales the ratios of both orders toward the
    geometric mean of their medians, by at most a factor of ``StatisticsPolicy.order``. The orders differed by 8% in one
    measurement on two cores.
    """
    groups = [
        [r for r, first in zip(ratios, reference_first, strict=True) if first is wanted] for wanted in (True, False)
    ]
    if min(map(len, groups)) < _STATISTICS.least_of_order:
        return list(ratios)
    half = min(max(sqrt(median(groups[1]) / median(groups[0])), 1 / _STATISTICS.order), _STATISTICS.order)
    return [ratio * half if first else ratio / half for ratio, first in zip(ratios, reference_first, strict=True)]


class Pairs(Struct):
    """Times of kernel and reference calls in pairs, in milliseconds."""

    kernel_ms: list[float]
    """The kernel's time for the speedup: the larger of the reported time and the judge's time."""
    reference_ms: list[float]
    reported_ms: list[float]
    """The time that the kernel's process reported."""
    wall_ms: list[float]
    """The kernel's time by the judge's clock."""
    reference_first: list[bool]

    @classmethod
    def none(cls) -> Pairs:
        return cls([], [], [], [], [])

    @classmethod
    def pooled(cls, processes: Iterable[Pairs]) -> Pairs:
        """Return the pairs of all ``processes``."""
        pooled = cls.none()
        for pairs in processes:
            for name in cls.__struct_fields__:
                getattr(pooled, name).extend(getattr(pairs, name))
        return pooled

    def only(self, indices: Sequence[int]) -> Pairs:
        """Return the pairs at ``indices``."""
        return Pairs(*([getattr(self, name)[index] for index in indices] for name in self.__struct_fields__))

    @property
    def ratios(self) -> list[float]:
        ratios = [slow / fast for slow, fast in zip(self.reference_ms, self.kernel_ms, strict=True)]
        return without_order(ratios, self.reference_first)

    def reference_medians_ms(self) -> dict[bool, float]:
        """Return the reference's median time in pairs that start with the reference (key True), and in the other pairs
        (key False).
        """
        orders: dict[bool, list[float]] = {}
        for ms, first in zip(self.reference_ms, self.reference_first, strict=True):
            orders.setdefault(first, []).append(ms)
        return {first: median(times_ms) for first, times_ms in orders.items()}

    def limit_reference(self, most_ms: float) -> None:
        """Scale the reference's times of each order so that their median is at most ``most_ms``."""
        factors = {first: min(1.0, most_ms / ms) for first, ms in self.reference_medians_ms().items()}
        times = zip(self.reference_ms, self.reference_first, strict=True)
        self.reference_ms = [ms * factors[first] for ms, first in times]


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return the median and the bounds of its interval. With too few samples, the bounds are the extremes."""
    ordered = sorted(samples)
    low, high = interval_ranks(len(ordered), confidence) or (0, len(ordered) - 1)
    return median(ordered), ordered[low], ordered[high]


def over_processes(counting: Sequence[Pairs], processes: Sequence[Pairs]) -> tuple[float, float, float]:
    """Return the median ratio with an interval that also covers the median of each process.

    Pairs from a single process do not show the variation between processes. ``counting``: each process's pairs that
    count toward the speedup, selected with the times of all processes. ``processes``: each process's pairs, selected
    with only its own times: all pairs on a GPU, or the undisturbed pairs on a CPU. A process with few pairs in
    ``counting`` contributes the median of its pairs in ``processes``.
    """
    middle, low, high = median_interval(Pairs.pooled(counting).ratios)
    medians = [
        median((count if len(count.kernel_ms) >= _STATISTICS.least_of_process else process).ratios)
        for count, process in zip(counting, processes, strict=True)
    ]
    return middle, min(low, *medians), max(high, *medians)


def is_settled(ratios: Sequence[float], relative_half_width: float, least: int) -> bool:
    """Return whether at least ``least`` ratios yield an interval within ``relative_half_width`` of the median."""
    if len(ratios) < least:
        return False
    middle, low, high = median_interval(ratios)
    return high - middle <= relative_half_width * middle and middle - low <= relative_half_width * middle


def is_undecided(low: float, high: float) -> bool:
    """Return whether the interval from ``low`` to ``high`` contains 1 and is too wide for a conclusion."""
    return low < 1.0 < high and high > POLICY.pairs.widest * low


def summarize(times_ms: Sequence[float]) -> Timing:
    """Return the median, the 10th percentile and the 90th percentile.

    Raises ``ValueError`` if ``times_ms`` is empty.
    """
    if not times_ms:
        raise ValueError("there are no times to summarize")
    ordered = sorted(times_ms)
    last = len(ordered) - 1
    return Timing(median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)], len(ordered))
