"""Statistics of paired timings, and how long to go on measuring. Pure.

Reference and kernel run in pairs on the same data, in either order; the estimate is the median of the pair ratios,
freed of what their order does, its interval comes from order statistics (binomial, no distribution assumed).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import comb, floor, sqrt
from statistics import NormalDist, median

from msgspec import Struct

from engine.verdict import Timing

CONFIDENCE = 0.95
MANY = 500
"""Samples above which the binomial distribution is taken as normal."""
MOST_BY_ORDER = 1.15
"""What may be taken out for the order of a pair, each way."""
_LEAST_OF_AN_ORDER = 3
"""Fewer say nothing of what it does."""
_LEAST_OF_A_SITTING = 16
"""Fewer pairs of a sitting say nothing by themselves."""


class Effort(Struct, frozen=True):
    """How long a verdict may go on timing, seconds: ``runs_s`` of kernel and reference, ``overhead_s`` of all else."""

    half_width: float
    """Settled when the 95 % interval of the median ratio is this narrow on both sides, relative to it."""
    least_s: float
    overhead_s: float
    runs_s: float


QUICK = Effort(half_width=0.01, least_s=0.0, overhead_s=0.6, runs_s=6.0)
THOROUGH = Effort(half_width=0.004, least_s=1.5, overhead_s=3.0, runs_s=4.0)
"""For each sitting of a single verdict. A machine shared with others drifts over seconds: many pairs within one do not
show it."""
THOROUGH_BUSY = Effort(half_width=0.004, least_s=1.5, overhead_s=7.0, runs_s=10.0)
"""The same where other programs keep the processor busy, which the system gives to one and to the other in turns, or
where most pairs are disturbed."""


def sittings(thorough: bool) -> int:
    """Of how many judgements, each in a process of its own, a verdict pools the pairs."""
    return 3 if thorough else 1


@cache
def interval_ranks(count: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Indices (from 0) into ``count`` sorted samples that bound the median with ``confidence``.

    None where there are too few samples for it (fewer than 6 at 95 %).
    """
    tail, cumulative, rank = (1 - confidence) / 2, 0.0, -1
    if count > MANY:
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
    """The pair ratios without the effect of who went first.

    Each finds the caches as the other left them. Both orders are centred on the geometric mean of their medians; on
    two cores they were 8 % apart for one kernel. Never by more than ``MOST_BY_ORDER``: no cache does that.
    """
    groups = [
        [r for r, first in zip(ratios, reference_first, strict=True) if first is wanted] for wanted in (True, False)
    ]
    if min(map(len, groups)) < _LEAST_OF_AN_ORDER:
        return list(ratios)
    half = min(max(sqrt(median(groups[1]) / median(groups[0])), 1 / MOST_BY_ORDER), MOST_BY_ORDER)
    return [ratio * half if first else ratio / half for ratio, first in zip(ratios, reference_first, strict=True)]


class Pairs(Struct):
    """What the pairs gave, milliseconds."""

    kernel_ms: list[float]
    reference_ms: list[float]
    wall_ms: list[float]
    """The kernel's calls as the judge's clock saw them."""
    used_ms: list[float]
    """Processor time of the kernel's process during its calls."""
    reference_first: list[bool]
    between_ms: list[float]
    """Processor time that it used between the call before and this one."""

    @classmethod
    def none(cls) -> Pairs:
        return cls([], [], [], [], [], [])

    @classmethod
    def pooled(cls, sittings: Iterable[Pairs]) -> Pairs:
        """Those of all ``sittings``."""
        pooled = cls.none()
        for pairs in sittings:
            for name in cls.__struct_fields__:
                getattr(pooled, name).extend(getattr(pairs, name))
        return pooled

    def only(self, indices: Sequence[int]) -> Pairs:
        """Those of ``indices``."""
        return Pairs(*([getattr(self, name)[index] for index in indices] for name in self.__struct_fields__))

    @property
    def ratios(self) -> list[float]:
        ratios = [slow / fast for slow, fast in zip(self.reference_ms, self.kernel_ms, strict=True)]
        return without_order(ratios, self.reference_first)


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Median with the bounds of its interval; the extremes where there are too few samples."""
    ordered = sorted(samples)
    low, high = interval_ranks(len(ordered), confidence) or (0, len(ordered) - 1)
    return median(ordered), ordered[low], ordered[high]


def over_sittings(counting: Sequence[Pairs], sittings: Sequence[Pairs]) -> tuple[float, float, float]:
    """Median ratio of the pairs that count with its interval, which reaches as far as the medians of the sittings lie
    apart: what differs from process to process, many pairs within one do not show.

    ``counting``: those of each sitting that count in all; where they are few, its median is that of the sitting.
    """
    middle, low, high = median_interval(Pairs.pooled(counting).ratios)
    medians = [
        median((count if len(count.kernel_ms) >= _LEAST_OF_A_SITTING else sitting).ratios)
        for count, sitting in zip(counting, sittings, strict=True)
    ]
    return middle, min(low, *medians), max(high, *medians)


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
