"""The row family in C++: plain starting points, moves and knobs."""

from __future__ import annotations

from typing import Literal

from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook import cpp_moves
from engine.proposers.playbook.cpp_math import POLYNOMIAL
from engine.proposers.playbook.cpp_options import RowOptions, choices_of, row_options
from engine.proposers.playbook.cpp_rows_code import MAX_BUFFER_COLS, kept_value
from engine.proposers.playbook.cpp_rows_file import row_kernel
from engine.proposers.playbook.ir import Program, RowProgram, needed
from engine.proposers.playbook.rewrite import row_reciprocals
from engine.proposers.playbook.template import Choice, Choices, First, Move, Recipe, Template

_L1_FLOATS = 8192
_LONG_ROW_FLOATS = 32768
_EXPONENTIALS = frozenset({"exp", "expm1", "sigmoid", "tanh"})


class CppRows(Template):
    """Row reductions in C++ with OpenMP and GCC's vector extensions."""

    name = "rows_cpp"
    family = "rows"
    language = "cpp"

    def first(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[First]:
        rows = as_rows(program)
        reuse: Literal["recompute", "output"] = "recompute" if kept_value(rows) is None else "output"
        return [
            First(
                "steps",
                "The formula step by step: one scalar pass over the whole tensor for each reduction, the rows' results "
                "in scratch memory in between, then one pass that writes the output. Plain and easy to check.",
                self._recipe(RowOptions(order="passes", reuse=reuse)),
            ),
            First(
                "rows",
                "Row by row: all steps of one row before the next begins, in scalar loops, so that later steps find "
                "the row in the cache.",
                self._recipe(RowOptions()),
            ),
        ]

    def moves(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Move]:
        rows, now = as_rows(program), row_options(recipe.choices)
        return [
            *_memory_moves(rows, now),
            *_parallel_moves(rows, now, device),
            *_compute_moves(rows, now),
            *_latency_moves(rows, now),
            *self._tune(program, recipe, device),
        ]

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        rows, now = as_rows(program), row_options(recipe.choices)
        found: dict[str, tuple[Choice, ...]] = {"prefetch": (0, 128, 256, 512, 1024, 2048)}
        if now.lanes > 1:
            found |= {"lanes": (8, 16), "accumulators": (1, 2, 4, 8)}
            if rows.element_stores:
                found["unroll"] = (1, 2, 4, 8)
        if now.fused or now.backward:
            found["block"] = (512, 1024, 2048, 4096, 8192, 16384)
        if now.math == "polynomial" and _ops(rows) & _EXPONENTIALS:
            found["exp_degree"] = (5, 6)
        if now.parallel == "rows":
            found |= {"schedule": ("static", "guided", "dynamic"), "chunk": (0, 1, 4, 16, 64)}
        if now.parallel == "columns":
            found["parts"] = tuple(device.cores * k for k in (1, 2, 4, 8))
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        rows, options = as_rows(program), row_options(recipe.choices)
        if options.divide == "reciprocal":
            rows = row_reciprocals(rows)
        return row_kernel(rows, options, spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        exact = recipe.with_({"math": "libm", "divide": "divide"})
        return exact if exact.choices != recipe.choices else None

    def _recipe(self, options: RowOptions) -> Recipe:
        return Recipe(self.name, choices_of(options))

    def _tune(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Move]:
        knobs = self.knobs(program, recipe, device)
        return [cpp_moves.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else []


def as_rows(program: Program) -> RowProgram:
    assert isinstance(program, RowProgram), "the row templates take row programs"
    return program


def _ops(program: RowProgram) -> set[str]:
    roots = [r.source for r in program.reductions] + [s.value for s in program.stores]
    return {program.values[k].op for k in needed(program.values, roots)}


def _can_buffer(program: RowProgram, now: RowOptions) -> bool:
    return now.order == "rows" and now.parallel != "columns" and program.cols <= MAX_BUFFER_COLS


def _memory_moves(program: RowProgram, now: RowOptions) -> list[Move]:
    found = []
    kept = kept_value(program) is not None
    if now.order == "passes":
        found.append(
            Move(
                "row_at_a_time",
                "memory",
                "Every step walks the whole tensor, so each reads it from memory again. Finish a row before the "
                "next begins: later steps then find it in the cache, and the tensor is read once.",
                {"order": "rows"},
                gain=1.0 + 0.25 * len(program.passes),
                helps="memory",
            )
        )
    if now.stores == "cached" and now.lanes > 1 and program.element_stores:
        reuse: Choices = {}
        if now.reuse == "output":
            reuse = {"reuse": "buffer" if _can_buffer(program, now) else "recompute"}
        found.append(cpp_moves.streaming_stores(reuse))
    if kept and now.reuse != "buffer" and not now.fused and _can_buffer(program, now):
        found.append(
            Move(
                "row_buffer",
                "memory",
                "Keep the row's exponentials in a buffer of one row that never leaves the core's cache: they are "
                "computed once, and the output is written only once, when it is final.",
                {"reuse": "buffer"},
                gain=1.3 if now.reuse == "recompute" else 1.05,
                helps="compute" if now.reuse == "recompute" else "memory",
            )
        )
    if program.fusable_pair is not None and not now.fused:
        found.append(_fuse(program))
    if not now.backward and now.order == "rows" and program.cols >= _LONG_ROW_FLOATS and program.element_stores:
        found.append(
            Move(
                "backward_output",
                "memory",
                "A long row does not fit the cache, so the output loop misses on every line. Let it run from the end "
                "to the start: it begins with what the reductions read last.",
                {"backward": True},
                ("block",),
                gain=1.08,
                helps="memory",
            )
        )
    return found


def _fuse(program: RowProgram) -> Move:
    pair = program.fusable_pair
    softmax = pair is not None and pair.kind == "online_softmax"
    how = (
        "Keep a running maximum, and rescale the running sum of exponentials when it rises (online softmax)"
        if softmax
        else "Compute mean and squared deviations of a block in the first-level cache and merge blocks by Chan's "
        "formula, which stays exact where a single pass over x^2 would cancel"
    )
    return Move(
        "online_softmax" if softmax else "merged_moments",
        "memory",
        f"Two reductions read the row one after the other. {how}: the row is read from memory once for both.",
        {"fused": True, "reuse": "recompute"},
        ("block",),
        gain=1.25 if program.cols > _L1_FLOATS else 1.02,
        helps="memory",
    )


def _parallel_moves(program: RowProgram, now: RowOptions, device: DeviceFact) -> list[Move]:
    found = []
    cores = max(1, device.cores)
    if now.parallel == "none" and program.rows > 1 and cores > 1:
        found.append(
            Move(
                "share_rows",
                "parallelism",
                f"One core of {cores} works. Rows are independent: share them out over OpenMP threads. Expected: "
                "nearly as many times faster as there are cores, until memory is the limit.",
                {"parallel": "rows"},
                ("schedule", "chunk") if now.lanes > 1 else (),
                gain=1.0 + 0.8 * (min(cores, program.rows) - 1),
            )
        )
    few = program.rows < 4 * cores
    if now.parallel != "columns" and few and program.cols >= _L1_FLOATS and cores > 1:
        changes: Choices = {"parallel": "columns", "parts": cores, "order": "rows"}
        if now.reuse == "buffer":
            changes["reuse"] = "recompute" if now.stores == "stream" else "output"
        idle = program.rows < cores
        found.append(
            Move(
                "share_columns",
                "parallelism",
                f"{program.rows} rows cannot keep {cores} cores evenly busy. Let all cores work on one row, each on a "
                "part of its columns; the partial results merge after a barrier, and a part stays in its core's cache.",
                changes,
                ("parts",),
                gain=0.8 * cores if now.parallel == "none" else 0.9 * cores / program.rows if idle else 1.05,
            )
        )
    if now.parallel == "rows" and now.schedule == "static" and program.rows >= 8 * cores:
        found.append(cpp_moves.dynamic_schedule("rows", {"chunk": 4}, ("schedule", "chunk")))
    return found


def _compute_moves(program: RowProgram, now: RowOptions) -> list[Move]:
    found = []
    ops = _ops(program)
    if now.lanes == 1 and program.cols >= 8:
        functions = sorted(ops & POLYNOMIAL)
        found.append(cpp_moves.vectorise(" and ".join(functions), {}))
    if now.lanes == 16:
        found.append(cpp_moves.narrower_vectors())
    if now.divide == "divide" and row_reciprocals(program) != program:
        found.append(cpp_moves.reciprocal("Take the reciprocal of the row's divisor once"))
    if now.math == "polynomial" and now.exp_degree == 6 and ops & _EXPONENTIALS:
        found.append(cpp_moves.shorter_polynomial())
    return found


def _latency_moves(program: RowProgram, now: RowOptions) -> list[Move]:
    found = []
    if now.lanes > 1 and now.accumulators == 1 and program.cols >= 4 * now.lanes and program.reductions:
        found.append(
            Move(
                "independent_sums",
                "latency",
                "Each addition of a reduction waits four cycles for the one before it. Keep several independent "
                "accumulators and add them up at the end of the row, so that the chains overlap.",
                {"accumulators": 4},
                ("accumulators",),
                gain=1.25,
                helps="latency",
            )
        )
    if now.lanes > 1 and now.prefetch == 0:
        found.append(cpp_moves.prefetch())
    if now.lanes > 1 and now.unroll == 1 and program.element_stores:
        found.append(cpp_moves.unroll_output())
    return found
