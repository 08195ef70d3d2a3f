"""The judge's measurements of one call of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple


class ReferenceTimes(NamedTuple):
    """The times of one call, or the medians of several, in milliseconds.

    ``ms``: the call's time. ``launching_ms``: the time until the call returned, usually before the GPU had finished.
    ``core_ms``: the time of a fixed loop on the same core just before the call, or 0 on a CPU.
    """

    ms: float
    launching_ms: float
    core_ms: float


def medians(times: Sequence[ReferenceTimes]) -> ReferenceTimes:
    return ReferenceTimes(*map(median, zip(*times, strict=True)))
