"""The catalogue of the row family in CUDA C++: which idea applies to which recipe, in prose, with its knobs.

From the plain template a lineage runs over wider accesses or a better split of the rows to rows that are read from
memory once: ``loop`` -> ``registers`` (short and middle rows) -> ``ring``, or ``loop`` -> ``split`` (few long rows)
-> ``ring``.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.events import DeviceFact
from engine.proposers.playbook.cuda_rows import full_width, resolve, single_stage
from engine.proposers.playbook.ir import RowProgram
from engine.proposers.playbook.template import Bound, Choices, Move, Recipe
from engine.proposers.protocol import Category

_SLOW_OPS = frozenset({"exp", "log", "reciprocal", "div", "sigmoid", "tanh"})


def moves(program: RowProgram, recipe: Recipe, device: DeviceFact) -> list[Move]:
    """Moves that apply to ``recipe``, the largest expected gain first."""
    found = [move for rule in _RULES if (move := rule(program, recipe.choices, device)) is not None]
    return sorted(found, key=lambda move: -move.gain)


def long_rows(program: RowProgram, device: DeviceFact) -> bool:
    """Whether there are too few rows to give every multiprocessor one."""
    return program.rows < 2 * max(1, device.cores) and program.cols >= 16384


def _full(program: RowProgram, now: Choices) -> bool:
    return now["width"] == full_width(program.cols)


def _move(
    name: str,
    category: Category,
    text: str,
    changes: Choices,
    opens: tuple[str, ...] = (),
    *,
    gain: float,
    helps: Bound = "memory",
) -> Move:
    return Move(name, category, text, changes, opens, gain, helps)


def _vectors(program: RowProgram, now: Choices, device: DeviceFact) -> Move | None:
    if _full(program, now):
        return None
    width = full_width(program.cols)
    changes: Choices = {"width": width, "merge": "shuffle"}
    if now["structure"] == "loop":
        threads = 1024 if program.cols >= 32768 else 256
        unroll = next((u for u in (8, 4, 2) if u * threads * width <= program.cols), 1)
        changes |= {"threads": threads, "unroll": unroll}
    return _move(
        "vector_loads",
        "memory",
        "Read and write 16 bytes per instruction (float4), with several loads in flight per thread: scalar accesses "
        "leave the memory system short of requests.",
        changes,
        ("threads", "unroll"),
        gain=1.6,
    )


def _shuffles(program: RowProgram, now: Choices, device: DeviceFact) -> Move | None:
    if now["structure"] != "loop" or now["merge"] == "shuffle":
        return None
    return _move(
        "warp_shuffles",
        "latency",
        "Fold partial results inside a warp by register shuffles and only one value per warp through shared memory: "
        "one barrier instead of eight.",
        {"merge": "shuffle"},
        ("threads",),
        gain=1.1,
        helps="latency",
    )


def _one_walk(program: RowProgram, now: Choices, device: DeviceFact) -> Move | None:
    if now["structure"] != "loop" or now["fused"] or not program.fused_pairs:
        return None
    return _move(
        "one_walk_for_all_reductions",
        "control",
        "Find dependent reductions in one walk over the row: a running maximum with a rescaled sum (online softmax), "
        "or mean and squared deviations merged by Chan's formula, which stays accurate far from zero.",
        {"fused": True, "merge": "shuffle"},
        ("threads", "unroll"),
        gain=1.35,
    )


def _split(program: RowProgram, now: Choices, device: DeviceFact) -> Move | None:
    if now["structure"] != "loop" or not long_rows(program, device) or not single_stage(program):
        return None
    return _move(
        "rows_over_many_blocks",
        "parallelism",
        "There are fewer rows than multiprocessors: spread each row over many blocks, whose partial states a second "
        "launch merges, and write the rows in a third.",
        {"structure": "split", "fused": True, "merge": "shuffle", "span_kb": _span_kb(program, device)},
        ("span_kb", "threads"),
        gain=8.0,
        helps="any",
    )


def _span_kb(program: RowProgram, device: DeviceFact) -> int:
    """The longest span that still gives every multiprocessor four blocks."""
    row_kb = program.cols // 256
    enough = (kb for kb in (256, 128, 64, 32) if program.rows * row_kb >= 4 * device.cores * kb)
    return next(enough, 16)


def _registers(program: RowProgram, now: Choices, device: DeviceFact) -> Move | None:
    if now["structure"] != "loop" or not _full(program, now) or long_rows(program, device):
        return None
    for sharing in (0, 1, 2, 4, 8):
        changes: Choices = {"structure": "registers", "cluster": sharing, "fused": True, "merge": "shuffle"}
        for threads in (128, 256, 512):
            wanted: Choices = {**changes, "threads": threads, "blocks": max(1, 1536 // threads)}
            plan = resolve(program, {**now, **wanted})
            if plan.structure == "registers" and plan.cluster == sharing and _fits(program, wanted, plan.code.width):
                holder = {0: "a warp", 1: "a block"}.get(sharing, f"a cluster of {sharing} blocks")
                text = (
                    f"Read the row once and keep it in the registers of {holder}, folding and writing it from there"
                    + (", with partial states exchanged through distributed shared memory." if sharing > 1 else ".")
                )
                opens = ("threads", "blocks") if sharing < 2 else ("threads", "blocks", "cluster")
                return _move("row_in_registers", "memory", text, wanted, opens, gain=1.7)
    return None


def _fits(program: RowProgram, wanted: Choices, width: int) -> bool:
    """At most 32 floats of the row in a thread; 16 where clusters share it, since two of those spill at 32."""
    sharers = int(wanted["threads"]) * int(wanted["cluster"]) if wanted["cluster"] else 32
    return -(-program.cols // (width * sharers)) * width <= (32 if int(wanted["cluster"]) < 2 else 16)


def _ring(program: RowProgram, now: Choices, device: DeviceFact) -> Move | None:
    if now["structure"] == "ring" or not _full(program, now):
        return None
    few = long_rows(program, device)
    if few and now["structure"] != "split":
        return None
    for group in (0,) if few else (1, 2, 4, 8):
        wanted: Choices = {"structure": "ring", "cluster": group, "threads": 512, "slot_kb": 16, "keep": 0, "blocks": 1}
        plan = resolve(program, {**now, **wanted})
        # With half a row to spare in the ring, the next row arrives while this one is written.
        if plan.ring is not None and plan.cluster == group and 2 * plan.ring.slots >= 3 * plan.ring.pieces:
            holder = "the whole grid" if few else f"a cluster of {group} blocks" if group > 1 else "each block"
            return _move(
                "copy_ahead_into_a_ring",
                "latency",
                f"Persistent blocks: a producer warp copies row after row into a ring in shared memory with bulk "
                f"asynchronous copies, {holder} folds a row as it lands, and the next row's copies are in flight "
                f"while the exchange of this one is waited for. Every row is read from memory once.",
                wanted,
                ("threads", "slot_kb", "keep") if few else ("threads", "slot_kb"),
                gain=1.8 if group > 1 else 1.2 if group == 1 else 1.02,  # see cuda_rows.PLAIN for what was measured
            )
    return None


def _share_weights(program: RowProgram, now: Choices, device: DeviceFact) -> Move | None:
    if now["structure"] != "split" or int(now["rows_per_block"]) > 1 or program.rows < 2:
        return None
    code = resolve(program, now).code
    if not code.out_extras or not code.out_extras_by_column:
        return None
    return _move(
        "weights_once_for_many_rows",
        "memory",
        "Every row multiplies by the same weights: give a thread some columns and let it write several rows, so that "
        "the weights are read once and stay in registers.",
        {"rows_per_block": min(16, program.rows)},
        ("rows_per_block", "unroll"),
        gain=1.45,
    )


def _keep_weights(program: RowProgram, now: Choices, device: DeviceFact) -> Move | None:
    if now["structure"] != "ring" or int(now["keep"]) > 0:
        return None
    plan = resolve(program, {**now, "keep": 4})
    if plan.ring is None or not plan.ring.keep or program.rows < 2 * (int(now["sms"]) // plan.ring.group):
        return None
    return _move(
        "weights_in_registers",
        "memory",
        "A persistent block sees the same columns in every row: keep part of their weights in registers instead of "
        "reading them from L2 each time.",
        {"keep": 2},
        ("keep", "threads"),
        gain=1.15,
    )


def _groups(program: RowProgram, now: Choices, device: DeviceFact) -> Move | None:
    if now["structure"] != "split" or int(now["group_rows"]) or program.rows < 2:
        return None
    return _move(
        "few_rows_at_a_time",
        "memory",
        "Fold and write a few rows before touching the next ones, so that the second read of a row finds it in L2.",
        {"group_rows": max(1, program.rows // 8)},
        ("group_rows", "rows_per_block"),
        gain=1.0,
    )


def _hints(program: RowProgram, now: Choices, device: DeviceFact) -> Move | None:
    if now["store"] == "stream":
        return None
    return _move(
        "streaming_stores",
        "memory",
        "Results are not read again: write them with evict-first stores, so that they do not push rows and weights "
        "out of L2.",
        {"store": "stream"},
        ("store", "read"),
        gain=1.05,
    )


def _fast_math(program: RowProgram, now: Choices, device: DeviceFact) -> Move | None:
    if now["math"] == "fast" or not any(v.op in _SLOW_OPS for v in program.values):
        return None
    return _move(
        "fast_math",
        "compute",
        "Use the special-function unit: exp as one exp2 with log2(e) folded in, divisions by a fast reciprocal. "
        "Errors stay near 1e-6.",
        {"math": "fast"},
        gain=1.15,
        helps="compute",
    )


def _occupancy(program: RowProgram, now: Choices, device: DeviceFact) -> Move | None:
    opens = {
        "loop": ("threads", "unroll"),
        "registers": ("threads", "blocks", "cluster"),
        "split": ("threads", "unroll", "span_kb"),
        "ring": ("threads", "slot_kb", "cluster"),
    }[str(now["structure"])]
    return _move(
        "balance_occupancy",
        "parallelism",
        "Trade threads per block, work per thread and registers against each other until enough loads are in flight.",
        {"threads": 256 if now["threads"] != 256 else 512},
        opens,
        gain=1.04,
        helps="latency",
    )


_Rule = Callable[[RowProgram, Choices, DeviceFact], Move | None]
_RULES: tuple[_Rule, ...] = (
    _split,
    _registers,
    _vectors,
    _ring,
    _one_walk,
    _share_weights,
    _keep_weights,
    _fast_math,
    _groups,
    _shuffles,
    _hints,
    _occupancy,
)
