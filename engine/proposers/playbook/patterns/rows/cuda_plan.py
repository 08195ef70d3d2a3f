"""Resolve the choices of a CUDA row recipe for a device, so that every knob has a legal value.

The simplest structure is ``loop``, with one block per row and one pass per reduction. The structure ``registers`` reads
a row once into registers. The structure ``split`` divides a long row among many blocks, in three launches. In the
structure ``ring``, persistent blocks fetch rows with bulk copies. The structure ``block`` holds a row in a block's
shared memory and registers. In the structure ``halves``, persistent blocks share each row and keep it in 16 bits.
``cuda_transformations`` defines the steps from each structure to the next.
"""

from __future__ import annotations

import math

from msgspec import Struct

from engine.devices.fact import DeviceFact
from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.codegen.cuda import compute_capability
from engine.proposers.playbook.ir.program import RowProgram
from engine.proposers.playbook.patterns.rows.cuda_stages import RowStages, stages_of

PLAIN: Choices = {
    "structure": "loop",
    "fused": False,
    "merge": "tree",
    "width": 1,
    "threads": 256,
    "unroll": 1,
    "read": "plain",
    "store": "plain",
    "math": "precise",
    "cluster": 1,
    "blocks": 1,
    "span_kb": 256,
    "group_rows": 0,
    "rows_per_block": 1,
    "slot_kb": 16,
    "keep": 0,
    "writers": 0,
    "per": 4,
    "slots": 3,
    "clear": "before",
    "sms": 0,
    "arch": 80,
}
"""The choices of the first CUDA row kernel, and measurements of other choices.

``cluster``: blocks that share a row; 0 means a warp per row in ``registers``, and the whole grid in ``ring``.
``blocks``: minimum number of resident blocks per multiprocessor, which limits registers per thread; in ``ring``, blocks
that share a multiprocessor's memory. ``span_kb``: KiB of a row that each block of ``split`` folds. ``group_rows``: rows
that ``split`` processes per set of launches; 0 means all rows. ``keep``: pieces of a row whose weights stay in
registers; in ``block``, chunks of the row in registers. ``per``: in ``halves``, packs per thread in each piece.
``slots``: in ``halves``, pieces that fit in the ring. ``writers``: threads of ``ring`` that only write rows; 0 means
that the folding threads also write. ``sms`` and ``arch`` describe the device.

All times are in ms for fp32 on one NVIDIA H200 (CUDA 13.0, cold L2, median of 15, ``benchmarks/templates.py measure``).

For softmax 4096 x 65536, the SOL is 0.499, eager takes 1.05, and torch.compile takes 0.78. The plain kernel takes 1.22.
The structure ``loop`` takes 0.67 with ``width`` 4, one pass, 1024 threads and ``unroll`` 8. The structure ``block``
takes 0.533 with 1024 threads and 4 chunks in registers. It takes 0.533 to 0.535 with 2 or 3 chunks, 512 or 768 threads,
or two passes. With evict-first copies, it takes 0.558. The structure ``registers`` takes 0.69 with ``cluster`` 8 and
512 threads. With ``cluster`` 4, it takes 0.74, because 32 floats per thread spill. With ``cluster`` 2 and 16 KiB slots,
``ring`` takes 0.557 with 384 threads, 0.559 with 640, and 0.561 with 768. With evict-first copies, ``ring`` takes 0.58
to 0.59. With separate writers, it takes 0.57 to 0.60. With plain stores, it takes 0.61 to 0.97. It takes 0.61 with two
blocks per multiprocessor, each with half of the ring. It takes 0.69 with ``cluster`` 4 and one block per
multiprocessor, because clusters of four do not fill all multiprocessors.

For layernorm 16 x 4194304, the SOL is 0.133, eager takes 8.1 to 8.4, and torch.compile takes 0.32 to 0.37. The plain
kernel takes 6.7. The structure ``split`` takes 0.319 if it reads scalar weights for each row, and 0.218 if it reads the
weights once for 16 rows. With spans of 64 KiB, ``split`` takes 0.223. With streaming reads, it takes 0.236, because the
last rows then miss L2. In groups of 4 rows, ``split`` takes 0.28. In groups of 1 row, it takes 0.48, because launches
do not overlap. The structure ``ring`` over the whole grid takes 0.260 with 512 threads, 16 KiB slots and ``keep`` 2. It
takes 0.193 with 256 separate writers, 128 folding threads, 8 KiB slots and ``keep`` 8. With ``keep`` 7 or 9, it takes
0.196. It takes 0.201 with 384 writers, 6 KiB slots and ``keep`` 10. It takes 0.205 with 512 writers, 8 KiB slots and
``keep`` 5. Copies without an evict-first policy push the weights out of L2. It takes 0.244 with these copies, 384
writers, 6 KiB slots and ``keep`` 8.
"""

MOST_GRID_ROWS = 65535
"""Maximum number of rows per launch of ``split``, because the rows are the grid's y dimension."""
_MOST_CONSUMERS = 1024 - 32
"""Maximum number of threads in a ``ring`` block, in addition to the producer warp."""
HELD_FLOATS = 64
"""Maximum number of a row's floats that a thread may keep in registers."""
BLOCK_KEPT_FLOATS = 32
"""Maximum number of a row's floats that a thread of ``block`` may keep in registers, in addition to shared memory."""
HALVES_PIECES = 4
"""Maximum number of pieces of a row per block in ``halves``. The pieces' exponents share one register, one byte each.
"""
HALVES_FLOATS = 64
"""Maximum number of a row's elements per thread in ``halves``. Registers hold the elements of about two rows."""
HALVES_HELPER_REGISTERS = 56
"""Registers of each thread that loads or exchanges data in ``halves``. With fewer registers, the exchanging warp
spills. With more registers, the other warps spill.
"""
_LINEAR = frozenset({"load", "const", "reduced", "add", "sub", "mul", "div", "neg", "max", "min"})
"""Operations after which an error stays small relative to the row's deviations."""


def plain(device: DeviceFact) -> Choices:
    """Return the choices of the first kernel on ``device``."""
    return {**PLAIN, "sms": device.cores, "arch": compute_capability(device.arch)}


def full_width(cols: int) -> int:
    """Return the number of elements in the widest pack (at most 16 bytes) that divides a row."""
    return next(w for w in (4, 2, 1) if cols % w == 0)


SHARED_BYTES = 228 * 1024
"""Bytes of shared memory per multiprocessor on sm_90. A block can use at most 227 KiB, and CUDA reserves 1 KiB per
block.
"""
RESERVED_BYTES = 4096
"""Bytes of a block's shared memory for barriers, states and CUDA itself."""


class RingPlan(Struct, frozen=True):
    """The layout of a row in the ring.

    Attributes:
        span: Packs of a row per block.
        piece: Packs per copy.
        keep: Pieces of a row whose weights stay in registers from row to row.
        slot_bytes: The slot size in the recipe.
        keep_wanted: The value of ``keep`` in the recipe.
    """

    group: int
    span: int
    piece: int
    pieces: int
    slots: int
    keep: int
    slot_bytes: int
    keep_wanted: int


def plan_ring(stages: RowStages, *, group: int, slot_bytes: int, keep: int, blocks: int) -> RingPlan | None:
    """Return the ring's layout for ``blocks`` blocks per multiprocessor.

    Return None if a block's part of a row does not fit in shared memory, or if a row is not a whole number of 16-byte
    packs.
    """
    if not stages.held or stages.width != 4 or len(stages.stages) < 1:
        return None
    packs = stages.program.cols // 4
    span = -(-packs // group)
    pieces = max(1, -(-span * 16 // slot_bytes))
    piece = 8 * math.ceil(math.ceil(span / pieces) / 8)  # A piece is a multiple of 128 bytes.
    pieces = -(-span // piece)
    slots = (SHARED_BYTES // blocks - RESERVED_BYTES) // (piece * 16 * len(stages.held))
    if slots < pieces:
        return None
    return RingPlan(group, span, piece, pieces, min(slots, 3 * pieces, 64), min(keep, pieces), slot_bytes, keep)


class Plan(Struct, frozen=True):
    """The choices for a row program, with every knob clamped to a legal value."""

    structure: str
    stages: RowStages
    threads: int
    cluster: int
    ring: RingPlan | None = None
    writers: int = 0
    halves: HalvesPlan | None = None


class HalvesPlan(Struct, frozen=True):
    """The layout of a row in ``halves``: ``group`` blocks, each with ``pieces`` pieces of ``piece`` packs. A piece has
    ``per`` packs per thread.
    """

    group: int
    pieces: int
    piece: int
    per: int
    slots: int


def block_cluster(stages: RowStages, *, threads: int, blocks: int, cluster: int) -> int | None:
    """Return how many blocks share a row in the structure ``block``: ``cluster`` or more. Return None if a row does not
    fit in eight blocks.
    """
    held = len(stages.held)
    if not held:
        return None
    bytes_of_chunk = threads * stages.width * 4 * held
    room = (SHARED_BYTES // blocks - RESERVED_BYTES) // bytes_of_chunk
    most = threads * (room + BLOCK_KEPT_FLOATS // (stages.width * held))
    packs = stages.program.cols // stages.width
    fitting = (count for count in (1, 2, 4, 8) if count >= cluster and -(-packs // count) <= most)
    return next(fitting, None) if room >= 1 else None


def _is_linear(program: RowProgram, k: int) -> bool:
    value = program.values[k]
    return value.op in _LINEAR and (value.op != "div" or program.per_row[value.args[1]])


def plan_halves(stages: RowStages, *, group: int, threads: int, per: int, slots: int) -> HalvesPlan | None:
    """Return the layout of ``halves`` for ``group`` blocks. Return None if a row does not fit, or if 16-bit storage
    could change the results by more than the rounding error of the row itself.
    """
    program = stages.program
    if len(stages.stages) != 1 or len(stages.held) != 1 or stages.width != 4 or not stages.out_extras_by_column:
        return None
    if any(not _is_linear(program, k) for k in program.element_order(stages.roots)):
        return None
    # If statistics depended on weights, the weights would have to be as exact as the row.
    if stages.extras(part.source for part in stages.stages[0]):
        return None
    span = -(-(program.cols // 4) // group)
    pieces = -(-span // (per * threads))
    each = -(-span // (pieces * threads))
    piece = each * threads
    weight_bytes = len(stages.out_extras) * pieces * each * threads * 8
    room = (SHARED_BYTES - RESERVED_BYTES - weight_bytes) // (16 * piece)
    if pieces > HALVES_PIECES or pieces * each * 4 > HALVES_FLOATS or room < 2:
        return None
    return HalvesPlan(group, pieces, piece, each, min(room, slots))


def resolve(program: RowProgram, choices: Choices) -> Plan:
    """Return the plan for ``choices``. If the structure cannot hold a row, use the nearest structure that can."""
    wanted = str(choices["structure"])
    width = min(int(choices["width"]), full_width(program.cols))
    fused = bool(choices["fused"]) or wanted != "loop"
    stages = RowStages(program, width=width, fused=fused)
    threads, cluster = int(choices["threads"]), int(choices["cluster"])
    hopper = int(choices["arch"]) >= 90
    if wanted == "split" and len(stages.stages) == 1:
        return Plan("split", stages, threads, 1)
    if wanted == "halves" and hopper:
        halves = plan_halves(
            stages, group=max(1, int(choices["sms"])), threads=threads, per=int(choices["per"]),
            slots=int(choices["slots"]),
        )  # fmt: skip
        if halves is not None:
            return Plan("halves", stages, threads, 0, halves=halves)
        return resolve(program, {**choices, "structure": "split"})
    if wanted == "block" and hopper:
        blocks = max(1, int(choices["blocks"]))
        found = block_cluster(stages, threads=threads, blocks=blocks, cluster=max(1, cluster))
        if found is not None:
            return Plan("block", stages, threads, found)
        return resolve(program, {**choices, "structure": "ring"})
    if wanted == "ring" and hopper:
        for group in (cluster, *(g for g in (2, 4, 8) if cluster and g > cluster), 0):
            ring = _ring(stages, group, choices)
            if ring is not None:
                # Recipes of earlier versions have no "writers".
                writers = min(int(choices.get("writers", 0)), _MOST_CONSUMERS - 128)
                return Plan("ring", stages, min(threads, _MOST_CONSUMERS - writers), group, ring, writers)
    if wanted in ("registers", "ring"):
        for sharing in (cluster, 0, 1, *((2, 4, 8) if hopper else ())):
            if (sharing <= 1 or hopper) and sharing >= cluster and held_floats(stages, threads, sharing) <= HELD_FLOATS:
                return Plan("registers", stages, threads, sharing)
    return Plan("loop", stages, threads, 1)


def held_floats(stages: RowStages, threads: int, cluster: int) -> int:
    """Return how many of a row's floats are in each thread's registers. If ``cluster`` is 0, the row is in one warp."""
    sharers = threads * cluster if cluster else 32
    return -(-stages.program.cols // (stages.width * sharers)) * stages.width * max(1, len(stages.held))


def _ring(stages: RowStages, cluster: int, choices: Choices) -> RingPlan | None:
    group = cluster if cluster else int(choices["sms"]) * max(1, int(choices["blocks"]))
    if group < 1 or (not cluster and stages.program.rows > 4096):
        return None
    keep = int(choices["keep"]) if stages.out_extras and stages.out_extras_by_column else 0
    blocks = max(1, int(choices["blocks"]))
    return plan_ring(stages, group=group, slot_bytes=int(choices["slot_kb"]) * 1024, keep=keep, blocks=blocks)


def single_stage(program: RowProgram) -> bool:
    """Return whether one pass over a row computes all reductions."""
    return len(stages_of(program, True)) == 1
