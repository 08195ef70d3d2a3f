"""A device's readings over the last minutes, in bins of equal length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from engine.devices.sample import DeviceSample
from tui.view.source import Reading

SPAN_S = 300.0
"""Time span of the bins together, in seconds."""
FRESH_S = 10.0
"""Maximum age of the newest reading, in seconds, at which the bins end at this reading instead of the current time. The
last bin is then never empty while the engine takes readings."""
HOTTEST_C = 100.0
"""Temperature that counts as a device's limit, in degrees Celsius."""

Figure = Literal["load", "memory", "power", "temp"]
FIGURES: tuple[Figure, ...] = get_args(Figure)


def share_of_limit(sample: DeviceSample, figure: Figure) -> float | None:
    """Return a figure relative to its limit, from 0 to 1, or None if the device does not report it.

    The limits are 100% load, all memory, the power limit and ``HOTTEST_C``.
    """
    value, limit = {
        "load": (sample.utilization, 100.0),
        "memory": (sample.memory_used, sample.memory_total),
        "power": (sample.power_w, sample.power_limit_w),
        "temp": (sample.temperature_c, HOTTEST_C),
    }[figure]
    return min(1.0, max(0.0, value / limit)) if value is not None and limit else None


def end_of_bins(newest: float | None, now: float) -> float:
    """Return the time at which the bins end: that of the newest reading if it is fresh, or the current time."""
    return newest if newest is not None and now - newest < FRESH_S else now


def binned(readings: Iterable[Reading], device: str, figure: Figure, end: float, count: int) -> list[float | None]:
    """Return the mean share of a figure's limit in each of ``count`` bins, the newest last.

    A bin without a reading is None. Bins begin at multiples of their length, so that a finished bin never changes.
    """
    length = SPAN_S / count
    last = int(end // length)
    found: list[list[float]] = [[] for _ in range(count)]
    for reading in readings:
        place = int(reading.time // length) - last + count - 1
        if not 0 <= place < count:
            continue
        for sample in reading.samples:
            if sample.device == device and (share := share_of_limit(sample, figure)) is not None:
                found[place].append(share)
    return [sum(one) / len(one) if one else None for one in found]
