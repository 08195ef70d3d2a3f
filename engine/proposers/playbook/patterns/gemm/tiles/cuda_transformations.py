"""Transformations and knobs for a tiled matrix product in CUDA."""

from __future__ import annotations

from engine.proposers.playbook.base import Choice, Choices, Transformation
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import Plan

_TILED: Choices = {"structure": "tiles", "bm": 32, "bn": 32, "bk": 16, "tm": 2, "tn": 2}


def transformations(plan: Plan, now: Choices, dtype: str, depth: int, tiles: int) -> list[Transformation]:
    """Return the transformations of a matrix-product kernel.

    Args:
        dtype: The dtype of the operands.
        depth: The number of terms in a sum.
        tiles: The number of rows of tiles.
    """
    if plan.structure == "naive":
        several = Transformation(
            "several_per_thread",
            "compute",
            "The kernel loads a whole row and a whole column for every result. Let each thread compute several results "
            "in one column (output channels of a pixel, rows of a matrix). Each element of the right operand then "
            "serves all these results.",
            {"tm": 4, "bm": 32, "bn": 32},
            ("tm", "bm", "bn"),
            gain=1.5,
            helps="memory",
        )
        return [
            *([several] if plan.tm == 1 else []),
            Transformation(
                "shared_tiles",
                "memory",
                "Adjacent threads read the same rows and columns from global memory. Let the block copy a tile of "
                "each operand to shared memory, a few steps of k at a time, and load each number once.",
                _TILED,
                ("bk",),
                gain=2.5,
                helps="memory",
            ),
        ]
    found = []
    if plan.structure == "tiles" and plan.tm * plan.tn < 16:
        found.append(
            Transformation(
                "register_tiles",
                "compute",
                "Each multiply-add still reads shared memory. Give a thread an 8 x 8 tile of accumulators in "
                "registers, so that 16 reads serve 64 multiply-adds. Blocks of 128 x 128 "
                "read an eighth of what blocks of 16 x 16 read.",
                {"bm": 128, "bn": 128, "bk": 8, "tm": 8, "tn": 8},
                ("bm", "bn", "bk"),
                gain=3.0,
                helps="compute",
            )
        )
    if not now["vector"]:
        found.append(
            Transformation(
                "vector_loads",
                "memory",
                "Load 16 bytes at a time where rows allow it. The kernel then needs a quarter of the load "
                "instructions, and each warp reads whole sectors.",
                {"vector": True},
                ("bk",),
                gain=1.25,
                helps="memory",
            )
        )
    if plan.copy == "sync":
        found.append(
            Transformation(
                "double_buffer",
                "latency",
                "Loads and arithmetic alternate, with a barrier between them. Keep two tiles: load the next tile "
                "into registers while computing with the current tile, then store it to the other buffer. Each step "
                "then needs only one barrier.",
                {"copy": "registers"},
                ("bk",),
                gain=1.3,
                helps="latency",
            )
        )
    if plan.copy != "async" and now["copy"] != "async" and int(now["arch"]) >= 80:
        found.append(
            Transformation(
                "async_copies",
                "latency",
                "Copy tiles from global to shared memory asynchronously (cp.async), without registers in between, "
                "several tiles ahead of the arithmetic in a ring of buffers.",
                {"copy": "async", "stages": 3},
                ("stages", "bk"),
                gain=1.2,
                helps="latency",
            )
        )
    if plan.structure == "tiles" and int(now["arch"]) >= 80:
        found.append(_tensor_cores(dtype))
    if plan.group == 1 and tiles >= 8:
        found.append(
            Transformation(
                "group_tiles",
                "memory",
                "Blocks that run at the same time read some rows of tiles of one operand, but all tiles of the other "
                "operand. Number the blocks so that a group of rows finishes together. The shared tiles then stay in "
                "L2.",
                {"group": 8},
                ("group",),
                gain=1.05,
                helps="memory",
            )
        )
    if plan.bk < 32 and depth > 32:
        found.append(
            Transformation(
                "deeper_tiles",
                "control",
                "Process more steps of k per tile, as long as enough blocks fit in shared memory. A multiply-add "
                "then needs fewer barriers and less address arithmetic.",
                {"bk": 32},
                ("bk",),
                gain=1.05,
                helps="latency",
            )
        )
    if plan.structure == "tensor" and plan.bm * plan.bn < 128 * 128:
        found.append(
            Transformation(
                "larger_blocks",
                "compute",
                "Tensor cores need high arithmetic intensity. Have each block compute a tile of at least 128 x 128 "
                "outputs, so that the block reuses each loaded element more often.",
                {"bm": 128, "bn": 128, "wm": 2, "wn": 4},
                ("bm", "bn", "wm", "wn"),
                gain=1.3,
                helps="memory",
            )
        )
    return found


def _tensor_cores(dtype: str) -> Transformation:
    changes: Choices = {"structure": "tensor", "bm": 64, "bn": 64, "bk": 32, "wm": 2, "wn": 2}
    if dtype == "float32":
        return Transformation(
            "tf32_tensor_cores",
            "precision",
            "Round operands to TF32 (10 bits of mantissa, like torch's TF32 mode) and multiply on tensor cores with "
            "fp32 accumulators. Tensor cores have about eight times the rate of the fp32 units. The relative error "
            "rises to about 1e-3.",
            changes,
            ("bm", "bn", "wm", "wn"),
            gain=2.5,
            helps="compute",
        )
    return Transformation(
        "tensor_cores",
        "compute",
        "Multiply on tensor cores (wmma fragments of 16 x 16 x 16) with fp32 accumulators. Tensor cores multiply the "
        "same inputs at several times the rate of the fp32 units.",
        changes,
        ("bm", "bn", "wm", "wn"),
        gain=5.0,
        helps="compute",
    )


def fast_epilogue() -> Transformation:
    return Transformation(
        "fast_math",
        "compute",
        "The epilogue uses accurate library functions. Use the special-function unit instead; errors stay near 1e-6.",
        {"math": "fast"},
        (),
        gain=1.02,
        helps="compute",
    )


def knobs(plan: Plan, arch: int) -> dict[str, tuple[Choice, ...]]:
    """Return the legal values of the knobs that matter for ``plan``."""
    if plan.structure == "naive":
        return {"bm": (4, 8, 16, 32), "bn": (8, 16, 32, 64), "tm": (1, 2, 4, 8)}
    found: dict[str, tuple[Choice, ...]] = {"group": (1, 2, 4, 8, 16), "bk": (8, 16, 32, 64)}
    if plan.structure == "tensor":
        found |= {"bm": (32, 64, 128, 256), "bn": (32, 64, 128, 256), "bk": (16, 32, 64)}
        found |= {"wm": (1, 2, 4), "wn": (1, 2, 4)}
    else:
        found |= {"bm": (32, 64, 128), "bn": (32, 64, 128, 256), "tm": (2, 4, 8), "tn": (2, 4, 8)}
    if plan.copy == "async":
        found["stages"] = (2, 3, 4, 5)
    return found
