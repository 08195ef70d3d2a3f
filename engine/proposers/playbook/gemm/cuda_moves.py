"""Moves and knobs of a tiled product in CUDA, for all families that have one."""

from __future__ import annotations

from engine.proposers.playbook.gemm.cuda_plan import Plan
from engine.proposers.playbook.template import Choice, Choices, Move

_TILED: Choices = {"structure": "tiles", "bm": 32, "bn": 32, "bk": 16, "tm": 2, "tn": 2}


def moves(plan: Plan, now: Choices, dtype: str, depth: int, tiles: int) -> list[Move]:
    """Moves on a product. ``dtype``: of its operands; ``depth``: of the sums; ``tiles``: rows of tiles."""
    if plan.structure == "naive":
        several = Move(
            "several_per_thread",
            "compute",
            "Every result loads both its operands. Let a thread sum several results of one column (output channels of "
            "a pixel, rows of a matrix), so that what it loads of the right operand serves them all.",
            {"tm": 4, "bm": 32, "bn": 32},
            ("tm", "bm", "bn"),
            gain=1.5,
            helps="memory",
        )
        return [
            *([several] if plan.tm == 1 else []),
            Move(
                "shared_tiles",
                "memory",
                "Each thread reads its row and its column from global memory, as its neighbours do. Let the block "
                "bring a tile of both operands to shared memory, a few steps of k at a time, so that each number is "
                "loaded once for the whole block.",
                _TILED,
                ("bk",),
                gain=2.5,
                helps="memory",
            ),
        ]
    found = []
    if plan.structure == "tiles" and plan.tm * plan.tn < 16:
        found.append(
            Move(
                "register_tiles",
                "compute",
                "Each multiply-add still costs reads of shared memory. Give a thread an 8 x 8 tile of sums in "
                "registers: 16 reads then serve 64 multiply-adds, and blocks of 128 x 128 load an eighth as much.",
                {"bm": 128, "bn": 128, "bk": 8, "tm": 8, "tn": 8},
                ("bm", "bn", "bk"),
                gain=3.0,
                helps="compute",
            )
        )
    if not now["vector"]:
        found.append(
            Move(
                "vector_loads",
                "memory",
                "Load 16 bytes at a time where rows allow it: a quarter of the load instructions, and whole sectors "
                "for each warp.",
                {"vector": True},
                ("bk",),
                gain=1.25,
                helps="memory",
            )
        )
    if plan.copy == "sync":
        found.append(
            Move(
                "double_buffer",
                "latency",
                "Loads and arithmetic take turns with a barrier between them. Keep two tiles: load the next into "
                "registers while computing with the present one, then store it to the other buffer: a barrier a step.",
                {"copy": "registers"},
                ("bk",),
                gain=1.3,
                helps="latency",
            )
        )
    if plan.copy != "async" and now["copy"] != "async" and int(now["arch"]) >= 80:
        found.append(
            Move(
                "async_copies",
                "latency",
                "Copy tiles from global to shared memory asynchronously (cp.async), past the registers, several tiles "
                "ahead of the arithmetic in a ring of buffers.",
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
            Move(
                "group_tiles",
                "memory",
                "Blocks that run at the same time read whole rows of tiles of one operand and all of the other. Number "
                "the blocks so that a group of rows is finished together: what they share stays in L2.",
                {"group": 8},
                ("group",),
                gain=1.05,
                helps="memory",
            )
        )
    if plan.bk < 32 and depth > 32:
        found.append(
            Move(
                "deeper_tiles",
                "control",
                "Take more steps of k per tile: fewer barriers and less address arithmetic for each multiply-add, as "
                "long as shared memory holds enough blocks.",
                {"bk": 32},
                ("bk",),
                gain=1.05,
                helps="latency",
            )
        )
    if plan.structure == "tensor" and plan.bm * plan.bn < 128 * 128:
        found.append(
            Move(
                "larger_blocks",
                "compute",
                "Tensor cores need few bytes per operation: let a block compute 128 x 128 or more, so that each loaded "
                "number serves more products.",
                {"bm": 128, "bn": 128, "wm": 2, "wn": 4},
                ("bm", "bn", "wm", "wn"),
                gain=1.3,
                helps="memory",
            )
        )
    return found


def _tensor_cores(dtype: str) -> Move:
    changes: Choices = {"structure": "tensor", "bm": 64, "bn": 64, "bk": 32, "wm": 2, "wn": 2}
    if dtype == "float32":
        return Move(
            "tf32_tensor_cores",
            "precision",
            "Round operands to TF32 (10 bits of mantissa, as torch's own TF32 mode does) and multiply on tensor cores, "
            "with sums in fp32: about eight times the rate of the fp32 units. The result's relative error rises to "
            "about 1e-3.",
            changes,
            ("bm", "bn", "wm", "wn"),
            gain=2.5,
            helps="compute",
        )
    return Move(
        "tensor_cores",
        "compute",
        "Multiply on tensor cores (wmma fragments of 16 x 16 x 16) with sums in fp32: the same inputs, a multiple of "
        "the rate.",
        changes,
        ("bm", "bn", "wm", "wn"),
        gain=5.0,
        helps="compute",
    )


def fast_epilogue() -> Move:
    return Move(
        "fast_math",
        "compute",
        "What follows the sums uses exact library functions. Use the special-function unit instead; errors stay near "
        "1e-6.",
        {"math": "fast"},
        (),
        gain=1.02,
        helps="compute",
    )


def knobs(plan: Plan, arch: int) -> dict[str, tuple[Choice, ...]]:
    """Legal values of the knobs that matter for ``plan``."""
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
