"""The C++ template for row reductions."""

from __future__ import annotations

from typing import Literal

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cpp_math import EXPONENTIALS, POLYNOMIAL
from engine.proposers.playbook.codegen.cpp_options import choices_of, options_of
from engine.proposers.playbook.ir.program import RowProgram, as_rows, needed
from engine.proposers.playbook.ir.rewrite import row_reciprocals
from engine.proposers.playbook.patterns.rows.cpp_kernel import MAX_BUFFER_COLS, RowOptions, kept_value, row_kernel
from engine.proposers.playbook.transformations import cpp as shared

_L1_FLOATS = 8192
_LONG_ROW_FLOATS = 32768


class CppRows(Template):
    """Row reductions in C++ with OpenMP and GCC's vector extensions."""

    name = "rows_cpp"
    pattern = "rows"
    language = "cpp"

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        rows = as_rows(program)
        reuse: Literal["recompute", "output"] = "recompute" if kept_value(rows) is None else "output"
        return [
            Start(
                "steps",
                "Compute the formula step by step: one scalar pass over the whole tensor per reduction, then one "
                "pass that writes the output. Scratch memory holds the rows' results between passes. The code is "
                "plain and easy to check.",
                self._recipe(RowOptions(order="passes", reuse=reuse)),
            ),
            Start(
                "rows",
                "Go row by row, in scalar loops: finish all steps of one row before the next row. Later steps then "
                "find the row in the cache.",
                self._recipe(RowOptions()),
            ),
        ]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        rows, now = as_rows(program), options_of(RowOptions, recipe.choices)
        return [
            *_memory_transformations(rows, now),
            *_parallel_transformations(rows, now, device),
            *_compute_transformations(rows, now, device),
            *_latency_transformations(rows, now),
            *self._tune(program, recipe, device),
        ]

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        rows, now = as_rows(program), options_of(RowOptions, recipe.choices)
        found: dict[str, tuple[Choice, ...]] = {"prefetch": (0, 128, 256, 512, 1024, 2048)}
        if now.lanes > 1:
            found |= {"lanes": shared.lanes_knob(device), "accumulators": (1, 2, 4, 8)}
            if rows.element_stores:
                found["unroll"] = (1, 2, 4, 8)
        if now.fused or now.backward:
            found["block"] = (512, 1024, 2048, 4096, 8192, 16384)
        if now.math == "polynomial" and _ops(rows) & EXPONENTIALS:
            found["exp_degree"] = (5, 6)
        if now.parallel == "rows":
            found |= {"schedule": ("static", "guided", "dynamic"), "chunk": (0, 1, 4, 16, 64)}
        if now.parallel == "columns":
            found["parts"] = tuple(device.cores * k for k in (1, 2, 4, 8))
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        rows, options = as_rows(program), options_of(RowOptions, recipe.choices)
        if options.divide == "reciprocal":
            rows = row_reciprocals(rows)
        return row_kernel(rows, options, spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        exact = recipe.with_({"math": "libm", "divide": "divide"})
        return exact if exact.choices != recipe.choices else None

    def _recipe(self, options: RowOptions) -> Recipe:
        return Recipe(self.name, choices_of(options))

    def _tune(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        knobs = self.knobs(program, recipe, device)
        return [shared.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else []


def _ops(program: RowProgram) -> set[str]:
    roots = [r.source for r in program.reductions] + [s.value for s in program.stores]
    return {program.values[k].op for k in needed(program.values, roots)}


def _can_buffer(program: RowProgram, now: RowOptions) -> bool:
    return now.order == "rows" and now.parallel != "columns" and program.cols <= MAX_BUFFER_COLS


def _memory_transformations(program: RowProgram, now: RowOptions) -> list[Transformation]:
    found = []
    kept = kept_value(program) is not None
    if now.order == "passes":
        found.append(
            Transformation(
                "row_at_a_time",
                "memory",
                "Every step reads the whole tensor from memory again. Finish a row before the next row begins: later "
                "steps then find the row in the cache, and the kernel reads memory once.",
                {"order": "rows"},
                gain=1.0 + 0.25 * len(program.passes),
                helps="memory",
            )
        )
    if now.stores == "cached" and now.lanes > 1 and program.element_stores:
        reuse: Choices = {}
        if now.reuse == "output":
            reuse = {"reuse": "buffer" if _can_buffer(program, now) else "recompute"}
        found.append(shared.streaming_stores(reuse))
    if kept and now.reuse != "buffer" and not now.fused and _can_buffer(program, now):
        found.append(
            Transformation(
                "row_buffer",
                "memory",
                "Keep the row's exponentials in a buffer of one row that stays in the core's cache. The kernel then "
                "computes each exponential once and writes each output once.",
                {"reuse": "buffer"},
                gain=1.3 if now.reuse == "recompute" else 1.05,
                helps="compute" if now.reuse == "recompute" else "memory",
            )
        )
    if program.fusable_pair is not None and not now.fused:
        found.append(_fuse(program))
    if not now.backward and now.order == "rows" and program.cols >= _LONG_ROW_FLOATS and program.element_stores:
        found.append(
            Transformation(
                "backward_output",
                "memory",
                "A long row does not fit in the cache, so the output loop misses on every line. Run this loop from the "
                "end to the start: the end is still in the cache, because the reductions read it last.",
                {"backward": True},
                ("block",),
                gain=1.08,
                helps="memory",
            )
        )
    return found


def _fuse(program: RowProgram) -> Transformation:
    pair = program.fusable_pair
    softmax = pair is not None and pair.kind == "online_softmax"
    how = (
        "Keep a running maximum, and rescale the running sum of exponentials when the maximum rises (online softmax)."
        if softmax
        else (
            "Compute the mean and the squared deviations per block in the L1 cache, and merge blocks with "
            "Chan's formula. This formula stays accurate where E[x^2] - E[x]^2 would cancel."
        )
    )
    return Transformation(
        "online_softmax" if softmax else "merged_moments",
        "memory",
        f"Two reductions read the row one after the other. {how} One read from memory then serves both reductions.",
        {"fused": True, "reuse": "recompute"},
        ("block",),
        gain=1.25 if program.cols > _L1_FLOATS else 1.02,
        helps="memory",
    )


def _parallel_transformations(program: RowProgram, now: RowOptions, device: DeviceFact) -> list[Transformation]:
    found = []
    cores = max(1, device.cores)
    if now.parallel == "none" and program.rows > 1 and cores > 1:
        found.append(
            Transformation(
                "share_rows",
                "parallelism",
                f"Only one of {cores} cores has work. Rows are independent: share them among OpenMP threads. Expect a "
                "speedup close to the number of cores, until memory bandwidth becomes the limit.",
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
            Transformation(
                "share_columns",
                "parallelism",
                f"{program.rows} rows cannot keep {cores} cores evenly busy. Let all cores work on one row, each on "
                "some columns. The kernel merges the partial results after a barrier, and each part stays in its "
                "core's cache.",
                changes,
                ("parts",),
                gain=0.8 * cores if now.parallel == "none" else 0.9 * cores / program.rows if idle else 1.05,
            )
        )
    if now.parallel == "rows" and now.schedule == "static" and program.rows >= 8 * cores:
        found.append(shared.dynamic_schedule("rows", {"chunk": 4}, ("schedule", "chunk")))
    return found


def _compute_transformations(program: RowProgram, now: RowOptions, device: DeviceFact) -> list[Transformation]:
    found = []
    ops = _ops(program)
    if now.lanes == 1 and program.cols >= 8:
        functions = sorted(ops & POLYNOMIAL)
        found.append(shared.vectorize(" and ".join(functions), {}, device))
    if now.lanes == 16:
        found.append(shared.narrower_vectors())
    if now.divide == "divide" and row_reciprocals(program) != program:
        found.append(shared.reciprocal("Compute the reciprocal of the row's divisor once"))
    if now.math == "polynomial" and now.exp_degree == 6 and ops & EXPONENTIALS:
        found.append(shared.shorter_polynomial())
    return found


def _latency_transformations(program: RowProgram, now: RowOptions) -> list[Transformation]:
    found = []
    if now.lanes > 1 and now.accumulators == 1 and program.cols >= 4 * now.lanes and program.reductions:
        found.append(
            Transformation(
                "independent_sums",
                "latency",
                "Each addition in a reduction waits four cycles for the previous addition. Keep several independent "
                "accumulators, so that their additions overlap, and sum the accumulators at the end of the row.",
                {"accumulators": 4},
                ("accumulators",),
                gain=1.25,
                helps="latency",
            )
        )
    if now.lanes > 1 and now.prefetch == 0:
        found.append(shared.prefetch())
    if now.lanes > 1 and now.unroll == 1 and program.element_stores:
        found.append(shared.unroll_output())
    return found
