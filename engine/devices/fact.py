"""A device that a session uses."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class DeviceFact(Struct, frozen=True, omit_defaults=True):
    """Properties of a device. ``bandwidth_gbs`` and ``peak_gflops`` are None until the judge measures them.

    ``clock_mhz``: a GPU's highest clock. ``features``: a CPU's vector extensions, such as "avx2". ``caches``: a CPU's
    caches, such as "L2 512 KiB per core". ``host``: the cluster host that has the device; "" for the engine's host.
    ``software``: in a cluster, the versions of the host's software that affect machine code or speed, such as "g++
    12.2.0".
    """

    id: str
    kind: Literal["cpu", "cuda"]
    name: str
    arch: str
    memory_bytes: int
    cores: int
    bandwidth_gbs: float | None = None
    peak_gflops: float | None = None
    clock_mhz: int | None = None
    features: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    host: str = ""
    software: tuple[str, ...] = ()
