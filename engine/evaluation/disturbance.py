"""Which timed calls count on a CPU: those in which nothing else slowed the machine. Pure.

Other programs, and other virtual machines of the same host, whom this one cannot see, take cores, caches and memory
bandwidth for milliseconds or for minutes. That only ever adds time, and not the same to reference and kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.evaluation.timing import Pairs

_LONGER, _QUIETEST = 1.15, 0.02
"""A call that took so many times what the one at this quantile did was disturbed."""
_LEAST = 8
"""Pairs of each order that count in any case, the least disturbed ones."""


def undisturbed_times(times_ms: Sequence[float]) -> list[float]:
    """Those of ``times_ms`` that were not disturbed."""
    limit_ms = _limit_ms(times_ms)
    return [ms for ms in times_ms if ms <= limit_ms]


def undisturbed(pairs: Pairs) -> Pairs:
    """Those in which neither call was disturbed, or the least disturbed ones where that leaves too few.

    A disturbed reference is known by its time. Of the kernel as large a share of its slowest calls counts as disturbed
    as of the reference's, whatever they took: a kernel whose own times differ from call to call gains nothing by it
    where the reference's do not. They are the slowest by the judge's clock, which a kernel cannot turn. The pairs of
    each order are looked at by themselves, since who comes second finds other caches.
    """
    return pairs.only(sorted(index for indices in _by_order(pairs) for index in _least_disturbed(pairs, indices)))


def as_quiet_as_the_quietest(sittings: Sequence[Pairs]) -> list[Pairs]:
    """Of each sitting's undisturbed pairs those whose reference was not disturbed by what is quiet in all of them."""
    together = Pairs.pooled(sittings)
    limits_ms = [_limit_ms([together.reference_ms[index] for index in indices]) for indices in _by_order(together)]
    kept = []
    for pairs in sittings:
        kept.append(
            pairs.only(
                sorted(
                    index
                    for indices, limit_ms in zip(_by_order(pairs), limits_ms, strict=True)
                    for index in indices
                    if pairs.reference_ms[index] <= limit_ms
                )
            )
        )
    return kept if sum(len(pairs.kernel_ms) for pairs in kept) >= 2 * _LEAST else list(sittings)


def _by_order(pairs: Pairs) -> list[list[int]]:
    """Indices of the pairs whose reference ran first, and of the others."""
    return [[index for index, first in enumerate(pairs.reference_first) if first is wanted] for wanted in (True, False)]


def _least_disturbed(pairs: Pairs, indices: Sequence[int]) -> list[int]:
    """Which of the pairs at ``indices``, all of one order, count."""
    reference_ms, kernel_ms = ([times[index] for index in indices] for times in (pairs.reference_ms, pairs.wall_ms))
    places = [max(both) for both in zip(_places(reference_ms), _places(kernel_ms), strict=True)]
    quiet = len(undisturbed_times(reference_ms))
    count = max(sum(place < quiet for place in places), _LEAST)
    return [indices[at] for at in sorted(range(len(indices)), key=places.__getitem__)[:count]]


def _limit_ms(times_ms: Sequence[float]) -> float:
    """More than this was disturbed; 0 of no times."""
    return _LONGER * sorted(times_ms)[round(_QUIETEST * (len(times_ms) - 1))] if times_ms else 0.0


def _places(times_ms: Sequence[float]) -> list[int]:
    """How many of ``times_ms`` come before each, in order of time."""
    places = [0] * len(times_ms)
    for place, index in enumerate(sorted(range(len(times_ms)), key=times_ms.__getitem__)):
        places[index] = place
    return places
