"""Drop pairs of calls that other programs slowed on a CPU. All functions are pure.

Other programs and virtual machines compete for cores, caches and bandwidth, for milliseconds or minutes at a time. Such
disturbances only add time, and they slow the reference and the kernel differently.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.evaluation.judge_policy import POLICY
from engine.evaluation.timing.statistics import Pairs

_STATISTICS = POLICY.statistics


def undisturbed_times(times_ms: Sequence[float]) -> list[float]:
    """Return the undisturbed times among ``times_ms``."""
    limit_ms = _limit_ms(times_ms)
    return [ms for ms in times_ms if ms <= limit_ms]


def undisturbed(*processes: Pairs) -> list[Pairs]:
    """Return each process's undisturbed pairs or, if too few remain, its least disturbed pairs.

    The reference's times, pooled over all processes, determine the share of disturbed calls. The function treats the
    same share of the kernel's calls, the slowest by the judge's clock, as disturbed. Therefore erratic times give a
    kernel no advantage.

    The function treats each order within a pair separately, because the second call finds different data in the caches.
    """
    together = Pairs.pooled(processes)
    limits_ms = [_limit_ms([together.reference_ms[index] for index in indices]) for indices in _by_order(together)]
    kept: list[Pairs] = []
    for least in (0, _STATISTICS.least_kept):
        kept = [
            pairs.only(
                sorted(
                    index
                    for indices, limit_ms in zip(_by_order(pairs), limits_ms, strict=True)
                    for index in _least_disturbed(pairs, indices, limit_ms, least)
                )
            )
            for pairs in processes
        ]
        if sum(len(pairs.kernel_ms) for pairs in kept) >= 2 * _STATISTICS.least_kept:
            break
    return kept


def _by_order(pairs: Pairs) -> list[list[int]]:
    """Return two lists of indices: pairs whose reference ran first, and pairs whose kernel ran first."""
    return [[index for index, first in enumerate(pairs.reference_first) if first is wanted] for wanted in (True, False)]


def _least_disturbed(pairs: Pairs, indices: Sequence[int], limit_ms: float, least: int) -> list[int]:
    """Return the ``indices`` of the pairs to keep. All pairs at ``indices`` have the same order."""
    by_reference, by_kernel = (
        {index: rank for rank, index in enumerate(sorted(indices, key=times.__getitem__))}
        for times in (pairs.reference_ms, pairs.wall_ms)
    )
    place = {index: max(by_reference[index], by_kernel[index]) for index in indices}
    quiet = sum(pairs.reference_ms[index] <= limit_ms for index in indices)
    count = max(sum(at < quiet for at in place.values()), least)
    return sorted(indices, key=place.__getitem__)[:count]


def _limit_ms(times_ms: Sequence[float]) -> float:
    """Return the time in milliseconds above which a call counts as disturbed, or 0 if there are no times."""
    return _STATISTICS.disturbed * sorted(times_ms)[round(_STATISTICS.quiet * (len(times_ms) - 1))] if times_ms else 0.0
