"""Matmuls on Hopper with wgmma: the supported problems, the recipe's choices, and the resulting sizes."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.proposers.playbook.base import Choices, Recipe
from engine.proposers.playbook.patterns.gemm.program import MatmulProgram, Operand
from engine.proposers.playbook.patterns.gemm.tiles import cuda_plan

STRUCTURE = "wgmma"
ARCH = "sm_90a"
DEPTH = 64
"""Depth of a tile in 16-bit elements. A row then has 128 bytes, the width of the widest swizzle."""
SLABS = 2
"""The number of buffers through which a consumer stores its results. Each buffer has 64 rows of 128 bytes."""
WITHOUT_TENSOR_CORES: Choices = {
    "structure": "tiles", "bm": 128, "bn": 128, "bk": 8, "tm": 8, "tn": 8, "vector": True, "copy": "async",
    "stages": 3, "group": 8,
}  # fmt: skip
"""Choices that make a wgmma recipe use the fp32 units instead of tensor cores, at the fastest tile sizes."""
_SHARED_BYTES = cuda_plan.shared_limit(90)
_SLAB_BYTES = 64 * 128
_BARRIER_BYTES = 256
SPLITS = (1, 2, 4, 8, 16, 32)
"""The legal numbers of parts into which a kernel splits sums along k."""
_TILES = ((128, 256), (128, 192), (128, 128), (128, 64), (64, 256), (64, 128), (64, 64))
_OUTPUTS_PER_CYCLE = 32
"""Number of outputs for which a multiprocessor adds the 64 products of a step in one cycle, at 4096 half-precision
operations per cycle.
"""
_LOAD_CYCLES = 1.5
"""Cycles that a step needs to load a row or column of a tile. Small tiles load more rows and columns per output."""
_COMBINE_CYCLES = 8000
"""The cost, in cycles, of a second kernel that adds the partial sums."""
_BYTES_PER_CYCLE = 2500
"""Bytes per cycle that an H200 moves to and from device memory."""
_MOST_BATCH_DIMENSIONS = 3


class Plan(Struct, frozen=True):
    """The sizes of a matmul kernel with wgmma. A block computes ``bm`` x ``bn`` outputs, and ``consumers`` warpgroups
    divide its rows.

    ``cluster``: blocks that share each tile of the right operand. ``group``: rows of clusters that run at the same
    time. ``element``: the dtype that the tensor cores multiply. ``products`` is 3 if the kernel splits fp32 operands
    into two bf16 numbers, otherwise 1.
    """

    bm: int
    bn: int
    consumers: int
    stages: int
    cluster: int
    group: int
    element: str
    products: int
    splits: int
    sms: int

    @property
    def planes(self) -> int:
        """Number of 16-bit numbers into which the packing pass splits an element."""
        return 2 if self.products == 3 else 1

    @property
    def shared_bytes(self) -> int:
        slot = (self.bm + self.bn) * DEPTH * 2
        return self.stages * slot + self.consumers * SLABS * _SLAB_BYTES + _BARRIER_BYTES


def refusal(program: MatmulProgram, arch: str) -> str | None:
    """Return why wgmma does not support ``program`` on ``arch``, as a clause that completes "because ...". Return None
    if wgmma supports ``program``.
    """
    if arch != ARCH:
        return f"wgmma needs {ARCH}"
    if program.m < 16 or program.n < 16 or program.k < 16:
        return "the matrices are smaller than one tensor-core instruction"
    if any(len(operand.batch) > _MOST_BATCH_DIMENSIONS for operand in (program.a, program.b)):
        return "the batch has more dimensions than a tensor map supports"
    return None


def recipe(template: str, program: MatmulProgram, device: DeviceFact) -> Recipe:
    """Return the recipe of the first kernel. Its tile minimizes the estimated time of the busiest multiprocessor."""
    bm, bn, splits = min(
        ((bm, bn, splits) for splits in SPLITS for bm, bn in _TILES),
        key=lambda tile: _cycles(program, device, *tile),
    )
    even = -(-program.m // bm) % 2 == 0
    choices: Choices = cuda_plan.plain(device) | {
        "structure": STRUCTURE, "bm": bm, "bn": bn, "stages": 8, "cluster": 2 if even else 1, "group": 8,
        "arithmetic": "bf16x3", "splits": splits, "sms": device.cores,
    }  # fmt: skip
    return Recipe(template, choices, ("bm", "bn", "stages", "cluster", "group"))


def _cycles(program: MatmulProgram, device: DeviceFact, bm: int, bn: int, splits: int) -> float:
    """Estimate the cycles of the busiest multiprocessor."""
    steps = (3 if program.a.dtype == "float32" else 1) * -(-program.k // DEPTH)
    works = splits * program.batch * -(-program.m // bm) * -(-program.n // bn)
    step = bm * bn / _OUTPUTS_PER_CYCLE + _LOAD_CYCLES * (bm + bn)
    found = -(-works // max(1, device.cores)) * -(-steps // splits) * step
    if splits > 1:
        found += _COMBINE_CYCLES + splits * program.batch * program.m * program.n * 8 / _BYTES_PER_CYCLE
    return found


def resolve(choices: Choices, program: MatmulProgram) -> Plan:
    """Return the plan for ``choices``. Adjust choices that shared memory or shapes do not allow."""
    bm, bn, cluster = int(choices["bm"]), int(choices["bn"]), int(choices["cluster"])
    if -(-program.m // bm) < cluster:
        cluster = 1
    single = program.a.dtype != "float32" or choices["arithmetic"] == "fp16"
    element = program.a.dtype if program.a.dtype != "float32" else "float16" if single else "bfloat16"
    plan = Plan(
        bm, bn, bm // 64, int(choices["stages"]), cluster, max(1, int(choices["group"])), element,
        1 if single else 3, max(1, int(choices["splits"])), max(cluster, int(choices["sms"])),
    )  # fmt: skip
    while plan.shared_bytes > _SHARED_BYTES:
        plan = replace(plan, stages=plan.stages - 1)
    return plan


def needs_packing(operand: Operand, line_stride: int, k_stride: int) -> bool:
    """Return whether wgmma cannot read ``operand`` in place."""
    if operand.dtype == "float32" or 1 not in (line_stride, k_stride):
        return True
    across = line_stride if k_stride == 1 else k_stride
    return across == 0 or any(number % 8 for number in mapped_distances(operand, across))


def mapped_distances(operand: Operand, across: int) -> tuple[int, ...]:
    """Return the distances, in 16-bit elements, that must be multiples of 16 bytes in a tensor map."""
    return (across, operand.offset, *(step for _, step in operand.batch))
