"""Transformations and knobs for register tiles in C++."""

from __future__ import annotations

from collections.abc import Iterable

from engine.devices.fact import DeviceFact
from engine.proposers.playbook.base import Choice, Choices, Transformation
from engine.proposers.playbook.patterns.gemm.tiles.cpp_tiles import Tiles
from engine.proposers.playbook.transformations.cpp import has_avx512, lanes_knob, usual_lanes

QUICK_FLOPS = 10**8
"""Maximum number of operations for which to try the plainest loops. With more operations, one verdict takes as long as
ten others.
"""

_LONG_SUM = 512
"""Number of steps of k at which a panel of two vectors no longer fits in the L1 cache."""


def register_tiles(changes: Choices, gain: float) -> Transformation:
    return Transformation(
        "register_tiles",
        "compute",
        "Each multiply-add costs about one load. Keep a tile of accumulators in vector registers: a few rows by one or "
        "two vectors of columns. A loaded vector then serves all rows, a loaded number serves all columns, and no "
        "multiply-add waits for the previous one.",
        changes,
        ("rows", "vecs", "lanes"),
        gain=gain,
        helps="compute",
    )


def lanes_of(device: DeviceFact, columns: int) -> int:
    """Return the number of lanes per vector of a tile, for an output with ``columns`` columns."""
    return usual_lanes(device) if columns > 8 else 8


def transformations(tiles: Tiles, device: DeviceFact, *, direct: bool, height: int, depth: int) -> list[Transformation]:
    """Return the transformations of a tiled kernel.

    Args:
        direct: Whether tiles can also read the right operand in place.
        height: The output's number of rows.
        depth: The total number of steps of k.
    """
    found = []
    if direct and not tiles.pack_b:
        found.append(
            Transformation(
                "pack_right",
                "memory",
                "The loop over k walks down the right operand a whole row at a time, and each step touches another "
                "page and cache set. Copy the block's part of the right operand into panels as wide as a tile, once "
                "for all rows of the block. The copy also pads the last columns, so that no tile needs an edge case.",
                {"pack_b": True},
                ("col_tiles", "row_tiles"),
                gain=1.4,
                helps="memory",
            )
        )
    if not tiles.pack_a:
        found.append(
            Transformation(
                "pack_left",
                "memory",
                "A tile uses numbers from several rows at the same time. Copy the block's rows into panels, in which "
                "a tile's numbers for one k are adjacent.",
                {"pack_a": True},
                ("row_tiles",),
                gain=1.03,
                helps="memory",
            )
        )
    if tiles.depth == 0 and depth > 128:
        found.append(
            Transformation(
                "block_depth",
                "memory",
                "Full-length panels do not fit in the L1 cache. Split the sum over k into passes so that a panel fits "
                "in this cache, and keep the block's partial sums between passes.",
                {"depth": 256},
                ("depth", "row_tiles", "col_tiles"),
                gain=1.2 if depth >= _LONG_SUM else 1.05,
                helps="memory",
            )
        )
    # Without AVX-512, there are too few vector registers for a larger tile, and the compiler spills.
    if tiles.rows <= 6 and tiles.rows < height and has_avx512(device):
        found.append(larger_tiles())
    if tiles.unroll == 1:
        found.append(unroll_depth())
    if not tiles.prefetch:
        found.append(
            Transformation(
                "prefetch_rows",
                "latency",
                "Prefetch the right operand's row a few steps of k ahead, so that the row is in the L1 cache when the "
                "tile needs it.",
                {"prefetch": True},
                ("prefetch",),
                gain=1.03,
                helps="latency",
            )
        )
    return found


def larger_tiles() -> Transformation:
    return Transformation(
        "larger_tiles",
        "compute",
        "Some vector registers are unused. A larger tile keeps more multiply-adds in flight, which hides their "
        "latency. It also needs fewer loads per output.",
        {"rows": 12},
        ("rows", "vecs"),
        gain=1.25,
        helps="compute",
    )


def unroll_depth() -> Transformation:
    return Transformation(
        "unroll_depth",
        "control",
        "Unroll several steps of k, so that the steps share the loop counter and the address arithmetic.",
        {"unroll": 4},
        ("unroll",),
        gain=1.04,
        helps="compute",
    )


def share_blocks(cores: int) -> Transformation:
    return Transformation(
        "share_blocks",
        "parallelism",
        f"Only one of {cores} cores has work. Parts of the result are independent: share them among OpenMP threads. "
        "Expect a speedup close to the number of cores.",
        {"parallel": True},
        ("schedule",),
        gain=1.0 + 0.9 * (cores - 1),
    )


def polynomials(functions: Iterable[str]) -> Transformation:
    return Transformation(
        "polynomial_epilogue",
        "compute",
        f"The epilogue calls the C library for {' and '.join(functions)}, element by element. Evaluate polynomials on "
        "whole vectors instead (relative error about 1e-7).",
        {"math": "polynomial"},
        (),
        gain=1.1,
        helps="compute",
    )


def knobs(depth: int, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
    """Return the legal values of a tiled kernel's knobs."""
    depths = tuple(d for d in (64, 128, 192, 256, 384, 512, 768) if d < depth)
    found: dict[str, tuple[Choice, ...]] = {
        "rows": (2, 4, 6, 8, 10, 12, 14),
        "vecs": (1, 2, 3, 4),
        "lanes": lanes_knob(device),
        "row_tiles": (1, 2, 4, 8, 12, 16, 32),
        "col_tiles": (1, 2, 4, 6, 8, 12, 16),
        "unroll": (1, 2, 4, 8),
        "prefetch": (False, True),
    }
    return found | ({"depth": (0, *depths)} if depths else {})
