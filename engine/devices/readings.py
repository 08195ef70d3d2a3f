"""Readings of a session's devices: the devices of this machine or of other hosts."""

from __future__ import annotations

from engine.devices.hardware import DeviceReader
from engine.devices.sample import DeviceSample


class Readings:
    """A source of readings.

    ``remote``: the latest readings from other hosts, by device id; None if this machine judges the kernels.
    """

    def __init__(self) -> None:
        self._local = DeviceReader()
        self.remote: dict[str, DeviceSample] | None = None

    def read(self) -> list[DeviceSample]:
        """Return one reading per device."""
        return self._local.read() if self.remote is None else list(self.remote.values())
