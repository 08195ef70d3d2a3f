"""Which timed calls count on a CPU: those in which nothing else slowed the machine. Pure.

Other programs, and other virtual machines of the same host, whom this one cannot see, take cores, caches and memory
bandwidth for milliseconds or for minutes. That only ever adds time, and not the same to reference and kernel: on two
shared cores ten verdicts on one kernel were 5 % apart by the median of all pairs in one quarter of an hour and 10 %
beside a busy process, by the median of the undisturbed ones 1.5 and 2.5 %.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.evaluation.timing import Pairs

_LONGER, _QUIETEST = 1.15, 0.02
"""A call that took so many times what the quietest of a hundred do was disturbed."""
_LEAST = 8
"""Pairs of each order that count in any case, the least disturbed ones."""


def undisturbed_times(times_ms: Sequence[float]) -> list[float]:
    """Those of ``times_ms`` that were not disturbed."""
    if not times_ms:
        return []
    limit_ms = _LONGER * _quietest(times_ms)
    return [ms for ms in times_ms if ms <= limit_ms]


def undisturbed(sittings: Sequence[Pairs]) -> list[Pairs]:
    """Of each sitting the pairs in which neither call was disturbed, by what is quiet in all of them.

    A disturbed reference is known by its time. Of the kernel as large a share of its slowest calls counts as disturbed
    as of the reference's, whatever they took: a kernel whose own times differ from call to call gains nothing by it
    on an idle machine. The pairs of each order are looked at by themselves, since who comes second finds other caches.
    """
    together = Pairs.pooled(sittings)
    kept: set[int] = set()
    for wanted in (True, False):
        indices = [index for index, first in enumerate(together.reference_first) if first is wanted]
        reference_ms = [together.reference_ms[index] for index in indices]
        kernel_ms = [together.kernel_ms[index] for index in indices]
        kept.update(indices[at] for at in _least_disturbed(reference_ms, kernel_ms))
    counting, start = [], 0
    for pairs in sittings:
        end = start + len(pairs.kernel_ms)
        counting.append(pairs.only([index - start for index in range(start, end) if index in kept]))
        start = end
    return counting


def _least_disturbed(reference_ms: Sequence[float], kernel_ms: Sequence[float]) -> list[int]:
    """Which of these pairs count."""
    places = [max(pair) for pair in zip(_places(reference_ms), _places(kernel_ms), strict=True)]
    limit = len(undisturbed_times(reference_ms))
    if len(places) > _LEAST:
        limit = max(limit, sorted(places)[_LEAST - 1] + 1)
    return [index for index, place in enumerate(places) if place < limit or len(places) <= _LEAST]


def _quietest(times_ms: Sequence[float]) -> float:
    return sorted(times_ms)[round(_QUIETEST * (len(times_ms) - 1))]


def _places(times_ms: Sequence[float]) -> list[int]:
    """How many of ``times_ms`` come before each, in order of time."""
    places = [0] * len(times_ms)
    for place, index in enumerate(sorted(range(len(times_ms)), key=times_ms.__getitem__)):
        places[index] = place
    return places
