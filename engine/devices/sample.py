"""Device readings, as the session file stores them. This module does not import the code that reads the devices, so
monitors can load it quickly.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct


class DeviceProcess(Struct, frozen=True, omit_defaults=True):
    """A process that occupies device memory. ``memory_bytes`` is None if the driver reports no value."""

    pid: int
    memory_bytes: int | None = None


class DeviceSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reading of one device. A value that the device does not report is None.

    ``device`` is the ``DeviceFact.id``. Units: percent for ``utilization`` and ``cores`` (per core, CPU only), bytes
    for memory, watts for power, degrees Celsius for temperature, and MHz for clocks. ``throttle`` names the current
    causes of throttling. ``load`` is the one-minute load average.
    """

    device: str
    kind: Literal["cpu", "cuda"]
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle: tuple[str, ...] = ()
    processes: tuple[DeviceProcess, ...] = ()
    cores: tuple[float, ...] = ()
    load: float | None = None


def encode_samples(samples: list[DeviceSample]) -> str:
    """Encode simultaneous readings for a ``sample`` row in the session file."""
    return msgspec.json.encode(samples).decode()


def decode_samples(json: str) -> list[DeviceSample]:
    """Decode a ``sample`` row. Raises ``msgspec.ValidationError`` if the JSON is not a list of readings."""
    return msgspec.json.decode(json, type=list[DeviceSample])
