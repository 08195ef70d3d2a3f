"""The numbers that a standalone program and its reference share: pseudo-random inputs that C++ and NumPy both compute.

Element ``i`` of a tensor is ``mean + (u - 0.5) * width``, or ``low + n`` for integers. Output ``i`` of SplitMix64,
seeded with ``seed``, yields ``u`` (0 to 1) or ``n``.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

PLACES = 1024
"""Number of elements per output that the program compares with the reference."""
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64's constants (Steele, Lea and Flood, 2014)."""
CHUNK = 1 << 24
"""Number of elements to generate at a time."""


class Filling(Struct, frozen=True):
    """How to fill a tensor. ``low`` and ``span`` apply to integers: values from ``low`` to ``low + span - 1``."""

    seed: int
    mean: float = 0.0
    width: float = 0.0
    low: int = 0
    span: int = 1


class Expected(Struct, frozen=True):
    """Data for the program: how to fill inputs and weights, and the expected values at some positions in each
    output.
    """

    fillings: tuple[Filling, ...]
    places: tuple[tuple[int, ...], ...]
    values: tuple[tuple[float, ...], ...]


def bits(numpy: Any, start: int, count: int, seed: int) -> Any:
    """Return ``count`` outputs of SplitMix64, seeded with ``seed``, as a NumPy uint64 array that begins with output
    ``start``.
    """
    with numpy.errstate(over="ignore"):
        state = numpy.arange(start + 1, start + count + 1, dtype=numpy.uint64) * numpy.uint64(STEP)
        state += numpy.uint64(seed)
        state = (state ^ (state >> numpy.uint64(30))) * numpy.uint64(FIRST)
        state = (state ^ (state >> numpy.uint64(27))) * numpy.uint64(SECOND)
        return state ^ (state >> numpy.uint64(31))
