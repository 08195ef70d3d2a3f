"""Attention on Hopper with wgmma: the supported problems, the recipe's choices, and the resulting sizes."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.proposers.playbook.analysis.epilogue import is_acc
from engine.proposers.playbook.analysis.layouts import Atoms
from engine.proposers.playbook.base import Choices, Recipe
from engine.proposers.playbook.patterns.attention import cuda_plan
from engine.proposers.playbook.patterns.attention.program import AttentionProgram
from engine.proposers.playbook.patterns.gemm.program import Operand
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import shared_limit

STRUCTURE = "wgmma"
ARCH = "sm_90a"
GROUP_QUERIES = 64
"""Queries per warpgroup: the rows of one wgmma instruction."""
PRODUCER_REGISTERS = 24
_MOST_WIDTH = 256
"""Maximum number of elements per row of queries, keys or values: wgmma computes at most 256 columns at a time."""
_MOST_BATCH_PARTS = 3
"""Maximum number of batch dimensions: a tensor map has at most five dimensions, and rows and columns take two."""
_ALIGNMENT_BYTES = 16
_CHUNK_BYTES = 128
"""Bytes per part of a row in shared memory: the widest swizzle."""
_RESERVED_BYTES = 2048
"""Bytes of shared memory for barriers and for alignment to 1024 bytes."""
_REGISTERS = 64 * 1024
_MOST_REGISTERS = 240
_OTHER_REGISTERS = 32
"""Registers per consumer thread, not counting the registers for scores, weights and accumulators."""


class Plan(Struct, frozen=True):
    """The sizes of an attention kernel with wgmma.

    Attributes:
        groups: The number of consumer warpgroups, of 64 queries each.
        stages: The number of tiles of ``tile_keys`` keys and values in shared memory.
        width, values: The number of elements per row of keys and per row of values, padded to whole wgmma steps.
        query_slots: The number of tiles of queries in shared memory, with 64 queries per consumer warpgroup.
        staged: Whether results go through shared memory, which requires that the kernel has no epilogue.
        turns: Whether warpgroups take turns issuing matrix products.
    """

    groups: int
    tile_keys: int
    stages: int
    width: int
    values: int
    query_slots: int
    staged: bool
    turns: bool
    sms: int

    @property
    def registers(self) -> int:
        """Registers per consumer thread: an equal share of the registers that the producer leaves."""
        warpgroups = self.groups + 1
        at_launch = _REGISTERS // (128 * warpgroups) // 8 * 8
        return min(_MOST_REGISTERS, (at_launch * warpgroups - PRODUCER_REGISTERS) // self.groups // 8 * 8)

    @property
    def needed_registers(self) -> int:
        scores, weights, sums = self.tile_keys // 2, self.tile_keys // 4, self.values // 2
        return scores + weights + sums + _OTHER_REGISTERS

    @property
    def shared_bytes(self) -> int:
        keys, values = (_CHUNK_BYTES * -(-width // 64) for width in (self.width, self.values))
        queries = GROUP_QUERIES * self.groups * (self.query_slots * keys + self.staged * values)
        return _RESERVED_BYTES + queries + self.stages * self.tile_keys * (keys + values)


def refusal(program: AttentionProgram, arch: str) -> str | None:
    """Return why wgmma attention does not support ``program`` on ``arch``, as a clause that completes "because ...".
    Return None if wgmma attention supports ``program``.
    """
    if arch != ARCH:
        return f"wgmma needs {ARCH}"
    if program.element_bytes != 2:
        return "the attention's operands are not fp16 or bf16"
    if max(program.width, program.value_width) > _MOST_WIDTH:
        return f"the attention's rows are longer than {_MOST_WIDTH} elements"
    for operand in (program.q, program.k, program.v):
        steps = (operand.row_stride, operand.offset, *(step for _, step in operand.batch))
        if operand.col_stride != 1 or any(step * operand.element_bytes % _ALIGNMENT_BYTES for step in steps):
            return f"the attention's rows are not contiguous, or not aligned to {_ALIGNMENT_BYTES} bytes"
        if not operand.row_stride or len(stepped(operand)) > _MOST_BATCH_PARTS:
            return "a tensor map cannot describe the attention's operands"
    return None


def recipe(template: str, program: AttentionProgram, device: DeviceFact) -> Recipe:
    """Return the recipe of the first kernel. Wide rows need more registers per thread, so that fewer warpgroups
    fit. Without a causal mask, the warpgroups take turns.
    """
    narrow = max(program.width, program.value_width) <= 64
    choices: Choices = cuda_plan.plain(device) | {
        "structure": STRUCTURE, "groups": 4 if narrow else 2, "keys": 64 if narrow else 128, "stages": 6,
        "turns": True, "vector": True, "math": "fast", "sms": device.cores,
    }  # fmt: skip
    return Recipe(template, choices, ("groups", "keys", "stages", "turns"))


def resolve(program: AttentionProgram, choices: Choices) -> Plan:
    """Return the plan for ``choices``. Adjust choices that registers, shared memory or shapes do not allow."""
    plan = Plan(
        groups=max(1, min(int(choices["groups"]), -(-program.rows // GROUP_QUERIES))),
        tile_keys=int(choices["keys"]),
        stages=int(choices["stages"]),
        width=_up(program.width, 16),
        values=_up(program.value_width, 16),
        query_slots=2,
        staged=stores_plainly(program),
        turns=bool(choices["turns"]) and not program.causal and int(choices["groups"]) > 1,
        sms=max(1, int(choices["sms"])),
    )
    while plan.needed_registers > plan.registers and plan.tile_keys > 32:
        plan = replace(plan, tile_keys=plan.tile_keys // 32 * 16)
    while plan.needed_registers > plan.registers and plan.groups > 1:
        plan = replace(plan, groups=plan.groups - 1)
    while plan.shared_bytes > shared_limit(90):
        if plan.stages > 2:
            plan = replace(plan, stages=plan.stages - 1)
        elif plan.query_slots > 1:
            plan = replace(plan, query_slots=1)
        elif plan.staged:
            plan = replace(plan, staged=False)
        elif plan.tile_keys > 32:
            plan = replace(plan, tile_keys=plan.tile_keys // 32 * 16)
        else:
            plan = replace(plan, groups=plan.groups - 1)
    return replace(plan, turns=plan.turns and plan.groups > 1)


def stepped(operand: Operand) -> Atoms:
    """Return the parts of the batch index that change the address of ``operand``."""
    return tuple((size, step) for size, step in operand.batch if step and size != 1)


def stores_plainly(program: AttentionProgram) -> bool:
    """Return whether the attention's result is the only output and has rows that 16-byte stores can write."""
    stores = program.chain.stores
    alone = len(stores) == 1 and is_acc(program.chain.values[stores[0].value])
    return alone and program.value_width * program.element_bytes % _ALIGNMENT_BYTES == 0


def _up(size: int, by: int) -> int:
    return -(-size // by) * by
