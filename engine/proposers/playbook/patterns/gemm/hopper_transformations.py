"""Transformations and knobs of a matmul with wgmma."""

from __future__ import annotations

from engine.proposers.playbook.base import Choice, Choices, Transformation
from engine.proposers.playbook.codegen.cuda import FAST_OPS
from engine.proposers.playbook.patterns.gemm.hopper import SPLITS, resolve
from engine.proposers.playbook.patterns.gemm.program import MatmulProgram
from engine.proposers.playbook.patterns.gemm.tiles.cuda_transformations import fast_epilogue

IDEA = (
    "Multiply with warpgroup instructions (wgmma), which read both operands from shared memory. A producer thread "
    "fills a ring of tiles through tensor maps, and the blocks of a cluster share the tiles of the right operand. "
    "Blocks stay resident and compute tile after tile, so that stores overlap with the next loads. The kernel splits "
    "each fp32 number into two bf16 numbers, and three products restore the precision of fp32."
)
KNOBS: dict[str, tuple[Choice, ...]] = {
    "bm": (64, 128),
    "bn": (64, 128, 192, 256),
    "stages": (3, 4, 6, 8),
    "cluster": (1, 2),
    "group": (1, 2, 4, 8, 16),
    "splits": SPLITS,
}


def transformations(program: MatmulProgram, now: Choices) -> list[Transformation]:
    """Return the transformations of a matmul kernel with wgmma."""
    plan, found = resolve(now, program), []
    if plan.products == 3:
        found.append(
            Transformation(
                "fp16_tensor_cores",
                "precision",
                "Round operands to fp16 (10 bits of mantissa, like TF32, and values up to 65504) and multiply once "
                "instead of three times. The relative error rises to about 1e-3.",
                {"arithmetic": "fp16"},
                ("bm", "bn"),
                gain=2.4,
                helps="compute",
            )
        )
    if plan.cluster == 1 and program.m > plan.bm:
        found.append(
            Transformation(
                "share_right_tiles",
                "memory",
                "Neighboring blocks load the same tiles of the right operand from L2. Let two blocks form a cluster, "
                "in which each block loads half of the common tile and multicasts this half to both.",
                {"cluster": 2},
                ("cluster",),
                gain=1.05,
                helps="memory",
            )
        )
    if (plan.bm, plan.bn) != (128, 256) and program.m > 64 and program.n > 128:
        found.append(
            Transformation(
                "larger_blocks",
                "compute",
                "Tensor cores need high arithmetic intensity. Have each block compute a tile of 128 x 256 outputs, so "
                "that the block reuses each loaded element more often.",
                {"bm": 128, "bn": 256},
                ("bm", "bn"),
                gain=1.05,
                helps="memory",
            )
        )
    if plan.bn > 128:
        found.append(
            Transformation(
                "narrower_blocks",
                "parallelism",
                "The tiles do not divide evenly among the multiprocessors. Narrow them to 128 columns, so that the "
                "last tiles keep more multiprocessors busy.",
                {"bn": 128, "stages": 6},
                ("bn", "stages"),
                gain=1.02,
                helps="latency",
            )
        )
    tiles = program.batch * -(-program.m // plan.bm) * -(-program.n // plan.bn)
    if plan.splits == 1 and tiles < plan.sms and program.k >= 2048:
        found.append(
            Transformation(
                "split_sums",
                "parallelism",
                "There are fewer tiles than multiprocessors. Give each tile to several blocks that sum over parts of "
                "k, and let a second kernel add the partial sums.",
                {"splits": 2},
                ("splits", "bm", "bn"),
                gain=1.3,
                helps="latency",
            )
        )
    if plan.group != 16:
        found.append(
            Transformation(
                "group_tiles",
                "memory",
                "Blocks that run at the same time read tiles of both operands. Number the tiles so that these blocks "
                "cover a square part of the result, and the operands stay in L2.",
                {"group": 16},
                ("group",),
                gain=1.02,
                helps="memory",
            )
        )
    if now["math"] != "fast" and any(program.chain.values[k].op in FAST_OPS for k in program.chain.order):
        found.append(fast_epilogue())
    return found
