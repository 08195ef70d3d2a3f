"""Moves and knobs of register tiles in C++, for all families that have them."""

from __future__ import annotations

from collections.abc import Iterable

from engine.proposers.playbook.gemm.cpp_tiles import Tiles
from engine.proposers.playbook.template import Choice, Choices, Move

QUICK_FLOPS = 10**8
"""Operations up to which the plainest loops are worth a verdict: beyond, one takes the time of ten others."""


def register_tiles(changes: Choices, gain: float) -> Move:
    return Move(
        "register_tiles",
        "compute",
        "Each product now costs about a load. Keep a tile of sums in vector registers: a few rows by one or two "
        "vectors of columns, so that a loaded vector serves all rows and a loaded number all columns, and the "
        "multiply-add units never wait for a sum.",
        changes,
        ("rows", "vecs", "lanes"),
        gain=gain,
        helps="compute",
    )


def moves(tiles: Tiles, *, direct: bool, depth: int) -> list[Move]:
    """Moves on a tiled kernel. ``direct``: the right operand can also be read where it lies; ``depth``: of all k."""
    found = []
    if direct and not tiles.pack_b:
        found.append(
            Move(
                "pack_right",
                "memory",
                "A tile walks down the right operand in steps of a whole row: a page and a cache set of its own at "
                "each step. Copy the block's part into panels that are as wide as a tile, once for all rows of the "
                "block; the copy also pads the last columns, so that no tile needs an edge.",
                {"pack_b": True},
                ("col_tiles", "row_tiles"),
                gain=1.4,
                helps="memory",
            )
        )
    if not tiles.pack_a:
        found.append(
            Move(
                "pack_left",
                "memory",
                "The numbers that a tile multiplies with come from several rows at once. Copy the block's rows into "
                "panels in which the tile's numbers of one k lie side by side.",
                {"pack_a": True},
                ("row_tiles",),
                gain=1.1,
                helps="memory",
            )
        )
    if tiles.depth == 0 and depth > 128:
        found.append(
            Move(
                "block_depth",
                "memory",
                "Panels over the whole sum do not stay in the first-level cache. Cut the sum over k into passes, keep "
                "the block's partial sums between them, and size the passes so that a panel fits.",
                {"depth": 256},
                ("depth", "row_tiles", "col_tiles"),
                gain=1.05,
                helps="memory",
            )
        )
    if tiles.rows <= 6:
        found.append(larger_tiles())
    if tiles.unroll == 1:
        found.append(unroll_depth())
    if not tiles.prefetch:
        found.append(
            Move(
                "prefetch_rows",
                "latency",
                "Ask for the right operand's row a few steps of k ahead, so that it is in the first-level cache when "
                "the tile arrives there.",
                {"prefetch": True},
                ("prefetch",),
                gain=1.03,
                helps="latency",
            )
        )
    return found


def larger_tiles() -> Move:
    return Move(
        "larger_tiles",
        "compute",
        "There are vector registers left. A larger tile has more sums in flight, which hides the latency of the "
        "multiply-add, and needs fewer loads for each.",
        {"rows": 12},
        ("rows", "vecs"),
        gain=1.25,
        helps="compute",
    )


def unroll_depth() -> Move:
    return Move(
        "unroll_depth",
        "control",
        "Write several steps of k out, so that loop counter and address arithmetic are paid once for all.",
        {"unroll": 4},
        ("unroll",),
        gain=1.04,
        helps="compute",
    )


def share_blocks(cores: int) -> Move:
    return Move(
        "share_blocks",
        "parallelism",
        f"One core of {cores} works. Parts of the result are independent: share them out over OpenMP threads. "
        "Expected: nearly as many times faster as there are cores.",
        {"parallel": True},
        ("schedule",),
        gain=1.0 + 0.9 * (cores - 1),
    )


def polynomials(functions: Iterable[str]) -> Move:
    return Move(
        "polynomial_epilogue",
        "compute",
        f"What follows the product calls the C library for {' and '.join(functions)}, element by element. Evaluate "
        "polynomials on whole vectors instead (about 1e-7 relative error).",
        {"math": "polynomial"},
        (),
        gain=1.1,
        helps="compute",
    )


def knobs(depth: int) -> dict[str, tuple[Choice, ...]]:
    """Legal values of a tiled kernel's knobs."""
    depths = tuple(d for d in (64, 128, 192, 256, 384, 512, 768) if d < depth)
    found: dict[str, tuple[Choice, ...]] = {
        "rows": (2, 4, 6, 8, 10, 12, 14),
        "vecs": (1, 2, 3, 4),
        "lanes": (8, 16),
        "row_tiles": (1, 2, 4, 8, 12, 16, 32),
        "col_tiles": (1, 2, 4, 6, 8, 12, 16),
        "unroll": (1, 2, 4, 8),
        "prefetch": (False, True),
    }
    return found | ({"depth": (0, *depths)} if depths else {})
