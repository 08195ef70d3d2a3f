"""Transformations of the row pattern in CUDA C++.

A lineage starts with the plain kernel. Wider accesses or a better split of the rows follow. Finally, the kernel reads
each row from memory only once. The structures are ``loop`` -> ``registers`` (short and medium rows) -> ``block``, or
``loop`` -> ``split`` (few long rows) -> ``ring``. If the tolerance permits, ``halves`` keeps rows in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.devices.fact import DeviceFact
from engine.proposers.categories import Category
from engine.proposers.playbook.base import Bound, Choices, Recipe, Transformation
from engine.proposers.playbook.codegen.cuda import FAST_OPS
from engine.proposers.playbook.ir.program import RowProgram
from engine.proposers.playbook.patterns.rows.cuda_plan import full_width, resolve, single_stage


def transformations(program: RowProgram, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
    """Return the transformations that apply to ``recipe``, the largest expected gain first."""
    found = [transformation for rule in _RULES if (transformation := rule(program, recipe.choices, device)) is not None]
    return sorted(found, key=lambda transformation: -transformation.gain)


_GRID_RING_BYTES = 64 << 20
"""Minimum size of a tensor in bytes for a ring over the whole grid. For smaller tensors, a second launch is faster."""


def best_known(program: RowProgram, recipe: Recipe, device: DeviceFact) -> Recipe:
    """Return ``recipe`` with the structure that was fastest in measurements of rows of this shape.

    The docstring of ``cuda_plan.PLAIN`` lists the measurements.
    """
    for rule in (_vectors, _one_walk, _split, _registers, _block, _ring, _share_weights, _writers, _hints, _fast_math):
        transformation = rule(program, recipe.choices, device)
        if transformation is None or transformation.gain <= 1:
            continue
        now = recipe.choices
        if rule is _block and now["structure"] == "registers" and int(now["cluster"]) <= 1:
            continue
        if rule is _ring and not (now["structure"] == "split" and 4 * program.rows * program.cols >= _GRID_RING_BYTES):
            continue
        recipe = recipe.with_(transformation.changes, transformation.opens)
    return recipe


def long_rows(program: RowProgram, device: DeviceFact) -> bool:
    """Return whether rows are long, with fewer than two rows per multiprocessor."""
    return program.rows < 2 * max(1, device.cores) and program.cols >= 16384


def _full(program: RowProgram, now: Choices) -> bool:
    return now["width"] == full_width(program.cols)


def _transformation(
    name: str,
    category: Category,
    text: str,
    changes: Choices,
    opens: tuple[str, ...] = (),
    *,
    gain: float,
    helps: Bound = "memory",
    tolerance: float = 0.0,
) -> Transformation:
    return Transformation(name, category, text, changes, opens, gain, helps, tolerance)


def _vectors(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if _full(program, now):
        return None
    width = full_width(program.cols)
    changes: Choices = {"width": width, "merge": "shuffle"}
    if now["structure"] == "loop":
        threads = 1024 if program.cols >= 32768 else 256
        unroll = next((u for u in (8, 4, 2) if u * threads * width <= program.cols), 1)
        changes |= {"threads": threads, "unroll": unroll}
    return _transformation(
        "vector_loads",
        "memory",
        "Scalar accesses keep too few bytes in flight. Read and write 16 bytes per instruction (float4), with several "
        "loads in flight per thread.",
        changes,
        ("threads", "unroll"),
        gain=1.6,
    )


def _shuffles(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["structure"] != "loop" or now["merge"] == "shuffle":
        return None
    return _transformation(
        "warp_shuffles",
        "latency",
        "Fold partial results inside a warp with register shuffles, and pass only one value per warp through shared "
        "memory. The kernel then needs one barrier instead of eight.",
        {"merge": "shuffle"},
        ("threads",),
        gain=1.1,
        helps="latency",
    )


def _one_walk(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["structure"] != "loop" or now["fused"] or not program.fused_pairs:
        return None
    return _transformation(
        "one_walk_for_all_reductions",
        "control",
        "Compute dependent reductions in one pass over the row. Keep a running maximum with a rescaled sum (online "
        "softmax), or merge the mean and the squared deviations with Chan's formula.",
        {"fused": True, "merge": "shuffle"},
        ("threads", "unroll"),
        gain=1.35,
    )


def _split(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["structure"] != "loop" or not long_rows(program, device) or not single_stage(program):
        return None
    return _transformation(
        "rows_over_many_blocks",
        "parallelism",
        "There are too few rows to keep all multiprocessors busy. Spread each row over many blocks, merge the partial "
        "states in a second launch, and write the rows in a third launch.",
        {"structure": "split", "fused": True, "merge": "shuffle", "span_kb": _span_kb(program, device)},
        ("span_kb", "threads"),
        gain=8.0,
        helps="any",
    )


def _span_kb(program: RowProgram, device: DeviceFact) -> int:
    """Return the longest span, in KiB, that still gives every multiprocessor four blocks."""
    row_kb = program.cols // 256
    enough = (kb for kb in (256, 128, 64, 32) if program.rows * row_kb >= 4 * device.cores * kb)
    return next(enough, 16)


def _registers(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["structure"] != "loop" or not _full(program, now) or long_rows(program, device):
        return None
    for sharing in (0, 1, 2, 4, 8):
        changes: Choices = {"structure": "registers", "cluster": sharing, "fused": True, "merge": "shuffle"}
        for threads in (128, 256, 512):
            wanted: Choices = {**changes, "threads": threads, "blocks": max(1, 1536 // threads)}
            plan = resolve(program, {**now, **wanted})
            if plan.structure == "registers" and plan.cluster == sharing and _fits(program, wanted, plan.stages.width):
                holder = {0: "a warp", 1: "a block"}.get(sharing, f"a cluster of {sharing} blocks")
                exchange = " The blocks exchange partial states through distributed shared memory."
                text = (
                    f"Read the row once, keep it in the registers of {holder}, and compute the outputs from there."
                    f"{exchange if sharing > 1 else ''}"
                )
                opens = ("threads", "blocks") if sharing < 2 else ("threads", "blocks", "cluster")
                return _transformation("row_in_registers", "memory", text, wanted, opens, gain=1.7)
    return None


def _fits(program: RowProgram, wanted: Choices, width: int) -> bool:
    """Return whether a thread's part of the row fits in registers: at most 32 floats, or 16 in clusters, where 32 would
    spill.
    """
    sharers = int(wanted["threads"]) * int(wanted["cluster"]) if wanted["cluster"] else 32
    return -(-program.cols // (width * sharers)) * width <= (32 if int(wanted["cluster"]) < 2 else 16)


def _ring(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["structure"] == "ring" or not _full(program, now):
        return None
    few = long_rows(program, device)
    if few and now["structure"] != "split":
        return None
    for group in (0,) if few else (1, 2, 4, 8):
        wanted: Choices = {
            "structure": "ring",
            "cluster": group,
            "threads": 384,
            "slot_kb": 16,
            "keep": 0,
            "blocks": 1,
            "writers": 0,
            "read": "stream" if few else "plain",
        }
        plan = resolve(program, {**now, **wanted})
        # If the ring has room for another half row, the next row arrives while the kernel writes the current row.
        if plan.ring is not None and plan.cluster == group and 2 * plan.ring.slots >= 3 * plan.ring.pieces:
            holder = "the whole grid" if few else f"a cluster of {group} blocks" if group > 1 else "each block"
            return _transformation(
                "copy_ahead_into_a_ring",
                "latency",
                "Use persistent blocks: a producer warp copies row after row into a ring in shared memory with bulk "
                f"asynchronous copies. Let {holder} fold a row as the row's pieces arrive. The next row's copies are "
                "in flight while blocks exchange this row's partial states. The kernel reads every row from memory "
                "once.",
                wanted,
                ("threads", "slot_kb", "keep") if few else ("threads", "slot_kb", "read"),
                gain=1.45 if group > 1 else 1.2 if group == 1 else 1.1,  # See cuda_plan.PLAIN for measurements.
            )
    return None


_FEWEST_BLOCK_COLUMNS = 4096
"""Minimum number of columns for ``block``. For shorter rows, the structure ``registers`` needs fewer instructions."""
_HALF_A_BLOCK = 104 << 10
"""Maximum size of a row in bytes, so that two rows easily fit in a multiprocessor's shared memory."""


def _block(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["structure"] not in ("loop", "registers", "ring") or long_rows(program, device) or not _full(program, now):
        return None
    if program.cols < _FEWEST_BLOCK_COLUMNS:
        return None
    held = max(1, len(resolve(program, now).stages.held))
    small = 4 * held * program.cols <= _HALF_A_BLOCK
    wanted: Choices = {
        "structure": "block",
        "fused": True,
        "merge": "shuffle",
        "cluster": 1,
        "threads": 512 if small else 1024,
        "blocks": 2 if small else 1,
        "keep": 4 // held,
        "unroll": 2,
        "read": "plain",
    }
    plan = resolve(program, {**now, **wanted})
    if plan.structure != "block":
        return None
    holder = "a block" if plan.cluster == 1 else f"a cluster of {plan.cluster} blocks"
    return _transformation(
        "row_in_shared_memory",
        "memory",
        f"Read each row once. Let {holder} hold the row on the chip, most of it in shared memory and the rest "
        "in registers, with all copies in flight at once. Blocks drift out of phase, so that some blocks read while "
        "other blocks write.",
        wanted,
        ("threads", "keep", "unroll", "blocks"),
        # See cuda_plan.PLAIN for measurements.
        gain=1.03 if now["structure"] == "ring" else 1.85 if int(now["cluster"]) > 1 or not small else 1.05,
    )


HALVES_TOLERANCE = 4e-3
"""The smallest tolerance that permits 16-bit rows. The largest measured error is 1.5e-3 relative to magnitude plus root
mean square. An fp16 number has 11 significant bits, and the kernel rounds the weights and the row once each.
"""


def _halves(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["structure"] not in ("split", "ring") or not long_rows(program, device) or not _full(program, now):
        return None
    plan = resolve(program, {**now, **HALVES})
    if plan.structure != "halves" or program.rows < 2:
        return None
    return _transformation(
        "rows_in_16_bits",
        "precision",
        "A row and the next row do not fit on the chip together in fp32. Once a row's statistics are complete, keep "
        "the row in registers as 16-bit deviations from a pivot, with a shared exponent. Keep the weights in "
        "shared memory in 16 bits. One row arrives while the kernel writes the previous row.",
        HALVES,
        ("threads", "per", "slots"),
        gain=1.3 if now["structure"] == "split" else 1.12,
        tolerance=HALVES_TOLERANCE,
    )


HALVES: Choices = {
    "structure": "halves", "fused": True, "merge": "shuffle", "threads": 512, "per": 4, "slots": 2, "read": "stream",
    "store": "stream",
}  # fmt: skip
"""Choices of ``halves``. With reads other than ``stream``, the row would push the weights out of L2. A third slot takes
half of the L1 cache. On an H200, layer normalization of 16 rows of 4 million elements took 0.187 ms with a third slot,
and 0.176 ms without.
"""
EXACT_RING: Choices = {
    "structure": "ring", "cluster": 0, "threads": 128, "writers": 256, "slot_kb": 8, "keep": 8, "blocks": 1,
}  # fmt: skip
"""Changes that turn a kernel with 16-bit rows into the fastest fp32 kernel."""


def _share_weights(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["structure"] != "split" or int(now["rows_per_block"]) > 1 or program.rows < 2:
        return None
    stages = resolve(program, now).stages
    if not stages.out_extras or not stages.out_extras_by_column:
        return None
    return _transformation(
        "weights_once_for_many_rows",
        "memory",
        "The kernel multiplies every row by the same weights. Give a thread some columns and let it write several "
        "rows, so that it reads the weights once and keeps them in registers.",
        {"rows_per_block": min(16, program.rows)},
        ("rows_per_block", "unroll"),
        gain=1.45,
    )


def _keep_weights(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["structure"] != "ring" or int(now["keep"]) > 0:
        return None
    plan = resolve(program, {**now, "keep": 4})
    if plan.ring is None or not plan.ring.keep or program.rows < 2 * (int(now["sms"]) // plan.ring.group):
        return None
    return _transformation(
        "weights_in_registers",
        "memory",
        "A persistent block processes the same columns in every row. Keep part of these columns' weights in "
        "registers instead of reading all weights from L2 each time.",
        {"keep": 2},
        ("keep", "threads"),
        gain=1.15,
    )


def _writers(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["structure"] != "ring" or int(now.get("writers", 0)):
        return None
    wanted: Choices = {"threads": 128, "writers": 256, "slot_kb": 8}
    plan = resolve(program, {**now, **wanted})
    if plan.ring is None:
        return None
    weights = plan.stages.out_extras and plan.stages.out_extras_by_column
    return _transformation(
        "separate_writers",
        "latency",
        "Memory is idle while blocks fold a row and exchange the row's partial states. Let some warps write a row "
        "while other warps already fold and exchange the next row."
        + (" The writers get most of the registers and use them to keep more weights." if weights else ""),
        {**wanted, "keep": 8} if weights else wanted,
        ("writers", "slot_kb", "keep") if weights else ("writers", "slot_kb"),
        gain=1.3 if plan.cluster == 0 else 1.0,  # See cuda_plan.PLAIN for measurements.
    )


def _groups(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["structure"] != "split" or int(now["group_rows"]) or program.rows < 2:
        return None
    return _transformation(
        "few_rows_at_a_time",
        "memory",
        "Fold and write a few rows before reading the next rows, so that the second read of a row hits L2.",
        {"group_rows": max(1, program.rows // 8)},
        ("group_rows", "rows_per_block"),
        gain=1.0,
    )


def _hints(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["store"] == "stream":
        return None
    return _transformation(
        "streaming_stores",
        "memory",
        "Nothing reads the results again. Write the results with evict-first stores, so that the results do not push "
        "rows and weights out of L2.",
        {"store": "stream"},
        ("store", "read"),
        gain=1.05,
    )


def _fast_math(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    if now["math"] == "fast" or not any(v.op in FAST_OPS for v in program.values):
        return None
    return _transformation(
        "fast_math",
        "compute",
        "Use the special-function unit: exp as one exp2 with log2(e) folded in, and fast reciprocals for divisions. "
        "The error stays near 1e-6.",
        {"math": "fast"},
        gain=1.15,
        helps="compute",
    )


def _occupancy(program: RowProgram, now: Choices, device: DeviceFact) -> Transformation | None:
    opens = {
        "loop": ("threads", "unroll"),
        "registers": ("threads", "blocks", "cluster"),
        "split": ("threads", "unroll", "span_kb"),
        "ring": ("threads", "slot_kb", "cluster"),
        "block": ("threads", "keep", "blocks"),
        "halves": ("threads", "per", "slots"),
    }[str(now["structure"])]
    return _transformation(
        "balance_occupancy",
        "parallelism",
        "Vary threads per block, work per thread and registers until enough loads are in flight.",
        {"threads": 256 if now["threads"] != 256 else 512},
        opens,
        gain=1.04,
        helps="latency",
    )


_Rule = Callable[[RowProgram, Choices, DeviceFact], Transformation | None]
_RULES: tuple[_Rule, ...] = (
    _split,
    _registers,
    _vectors,
    _block,
    _ring,
    _halves,
    _one_walk,
    _share_weights,
    _keep_weights,
    _writers,
    _fast_math,
    _groups,
    _shuffles,
    _hints,
    _occupancy,
)
