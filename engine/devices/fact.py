"""A device that a session uses."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class DeviceFact(Struct, frozen=True, omit_defaults=True):
    """Properties of a device. ``bandwidth_gbs`` and ``peak_gflops`` are None until the judge measures them."""

    id: str
    kind: Literal["cpu", "cuda"]
    name: str
    arch: str
    memory_bytes: int
    cores: int
    bandwidth_gbs: float | None = None
    peak_gflops: float | None = None
