"""The CUDA template for reductions over any dimensions."""

from __future__ import annotations

from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cuda import FAST_OPS
from engine.proposers.playbook.ir.reductions import ReductionProgram
from engine.proposers.playbook.patterns.reductions.cuda_kernel import reduction_kernel
from engine.proposers.playbook.patterns.reductions.program import as_reductions

PLAIN: Choices = {
    "width": 1,
    "threads": 256,
    "across": 32,
    "unroll": 1,
    "parts": 1,
    "held": 0,
    "sample": 1,
    "read": "plain",
    "store": "plain",
    "math": "precise",
}
"""The choices for a plain kernel that is easy to check by reading. ``across``: number of adjacent threads that read
adjacent packs, if the elements of a row are not adjacent. ``parts``: number of blocks that share a row. ``held``:
maximum number of packs that a thread keeps in registers between loops; with 0, each loop reads the packs again.
``sample``: in a normalization, a loop estimates the mean from one in ``sample`` elements.
"""
_PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_BLOCKS_PER_CORE = 16
"""Number of blocks per multiprocessor: two waves of eight blocks of 256 threads, so that few multiprocessors idle at
the end.
"""


_SAMPLE = 16
"""A loop estimates a mean from one in this many elements. The estimate takes little time compared with the two full
loops. The squared error of the estimate is at most 15 times the variance, so the estimate costs at most four of fp32's
24 bits.
"""
_SAMPLE_TEXT = (
    f"For a normalization, estimate the mean from 1/{_SAMPLE} of the elements. The deviations from the estimate give "
    "the exact mean and variance in one loop over the row."
)
_BLOCKS = ((256, 32), (256, 16), (256, 8), (512, 16), (512, 8))
"""Pairs of threads per block and ``across``, for a block that keeps its rows in registers. The preferred pair comes
first.
"""
_MOST_HELD = 16
"""Maximum number of packs of four floats that a thread keeps in registers, so that two blocks of 256 threads fit on a
multiprocessor.
"""


class CudaReductions(Template):
    """Reductions over any dimensions in CUDA C++."""

    name = "reductions_cu"
    pattern = "reductions"
    language = "cu"

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        found = as_reductions(program)
        plain = Recipe(self.name, dict(PLAIN))
        wide = plain.with_({"width": 4, "unroll": 8, "read": "stream", "store": "stream", "math": "fast"})
        parts = _parts(found, wide.choices, device)
        text = (
            "Let adjacent threads read adjacent elements, 16 bytes per load where rows allow it, with eight loads "
            "in flight. "
            f"{f'Split each row into {parts} parts, so that all multiprocessors have work.' if parts > 1 else ''}"
        )
        if found.moments is not None:
            wide = wide.with_({"sample": _SAMPLE})
            text += f" {_SAMPLE_TEXT}"
        starts = [
            Start("coalesced", text.strip(), wide.with_({"parts": parts}, ("threads", "parts"))),
            Start(
                "plain", "Fold each row with the threads of one block, and merge the threads' states in a tree.", plain
            ),
        ]
        held = _held(found, wide.choices, device)
        if held is not None:
            whole = wide.with_({**held, "sample": 1}, ("threads", "across"))
            starts.insert(0, Start("registers", _KEPT_TEXT, whole))
        return starts

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        rows, now = as_reductions(program), recipe.choices
        found: list[Transformation] = []
        if now["width"] != 4:
            found.append(_VECTOR_LOADS)
        if now["unroll"] == 1:
            found.append(_LOADS_IN_FLIGHT)
        # A block that keeps its rows in registers already reads them only once.
        if not now.get("held", 0):
            parts = _parts(rows, now, device)
            if now["parts"] == 1 and parts > 1:
                found.append(_split_rows(parts))
            if rows.moments is not None and now.get("sample", 1) == 1:
                found.append(_SAMPLED_MEAN)
            if (held := _held(rows, now, device)) is not None:
                found.append(replace(_KEPT_PACKS, changes=held))
            if not rows.geometry.adjacent and now["across"] == 32:
                found.append(_WIDER_BLOCKS)
        if now["store"] != "stream" and rows.element_stores:
            found.append(_STREAMING_STORES)
        if now["math"] != "fast" and any(value.op in FAST_OPS for value in rows.values):
            found.append(_FAST_MATH)
        return found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        rows = as_reductions(program)
        found: dict[str, tuple[Choice, ...]] = {
            "width": (1, 2, 4),
            "threads": (128, 256, 512),
            "unroll": (1, 2, 4, 8, 16),
            "parts": tuple(parts for parts in _PARTS if parts <= rows.geometry.cols),
            "read": ("plain", "stream"),
        }
        if not rows.geometry.adjacent:
            found["across"] = (8, 16, 32, 64, 128)
        # With more threads per column, a row still fits in registers.
        if recipe.choices.get("held", 0):
            del found["unroll"], found["parts"]
            found["threads"] = tuple(one for one in (256, 512) if one >= int(recipe.choices["threads"]))
            found["across"] = tuple(one for one in (8, 16, 32) if one <= int(recipe.choices["across"]))
        if rows.element_stores:
            found["store"] = ("plain", "stream")
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return reduction_kernel(as_reductions(program), recipe.choices, spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        return recipe.with_({"math": "precise"}) if recipe.choices["math"] != "precise" else None


def _parts(program: ReductionProgram, choices: Choices, device: DeviceFact) -> int:
    """Return the number of parts per row that lets the grid fill the device while each thread still gets several
    elements.
    """
    shape, threads, width = program.geometry, int(choices["threads"]), int(choices["width"])
    near = shape.run if shape.adjacent else shape.inner
    width = next(one for one in (width, 2, 1) if one <= width and near % one == 0)
    if shape.adjacent:
        tiles, elements_per_pass = shape.rows, threads * width
    else:
        across = min(int(choices["across"]), near // width)
        tiles, elements_per_pass = shape.outer * -(-(near // width) // across), max(1, threads // across)
    wanted = _BLOCKS_PER_CORE * max(1, device.cores) // tiles
    longest = shape.cols // (elements_per_pass * max(1, int(choices["unroll"])))
    return max(parts for parts in _PARTS if parts <= max(1, min(wanted, longest)))


def _held(program: ReductionProgram, choices: Choices, device: DeviceFact) -> dict[str, Choice] | None:
    """Return the choices that let a block keep all elements of its rows in registers. Return None if the elements do
    not fit, or if there are too few blocks for the device.
    """
    shape = program.geometry
    loops = len(program.passes) + bool(program.element_stores)
    if shape.adjacent or loops < 2 or choices["parts"] != 1:
        return None
    first = program.elements(tuple(program.reductions[k].source for k in program.passes[0]))
    loads = {(program.values[k].tensor, program.values[k].access) for k in first if program.values[k].op == "load"}
    most = _MOST_HELD // max(1, len(loads))
    for threads, across in _BLOCKS:
        blocks = shape.outer * -(-shape.inner // (across * int(choices["width"])))
        if -(-shape.folded // (threads // across)) <= most and blocks >= device.cores:
            return {"held": most, "threads": threads, "across": across}
    return None


_KEPT_TEXT = (
    "Assign adjacent rows to each block. The threads read each element once, and keep it in registers while "
    "they merge their states in shared memory. They write the results from the registers."
)
_VECTOR_LOADS = Transformation(
    "vector_loads",
    "memory",
    "Load 16 bytes per instruction (float4) if the adjacent dimension's size allows it, to move the same data with a "
    "quarter of the memory instructions.",
    {"width": 4},
    ("width", "threads"),
    gain=1.3,
    helps="memory",
)
_LOADS_IN_FLIGHT = Transformation(
    "loads_in_flight",
    "latency",
    "Let each thread issue several independent loads before it folds the first one, to hide memory latency.",
    {"unroll": 8},
    ("unroll", "threads"),
    gain=1.4,
    helps="latency",
)
_WIDER_BLOCKS = Transformation(
    "wider_blocks",
    "memory",
    "Let more threads of a block read contiguous memory, so that DRAM pages stay open longer.",
    {"across": 64},
    ("across", "threads"),
    gain=1.03,
    helps="memory",
)
_STREAMING_STORES = Transformation(
    "streaming_stores",
    "memory",
    "Nothing reads the results again. Write the results with evict-first stores, so that the results do not push "
    "inputs out of L2.",
    {"store": "stream"},
    ("store", "read"),
    gain=1.04,
    helps="memory",
)
_FAST_MATH = Transformation(
    "fast_math",
    "compute",
    "Use the special-function unit for exponentials, logarithms and divisions. The error stays near 1e-6.",
    {"math": "fast"},
    gain=1.05,
    helps="compute",
)


_SAMPLED_MEAN = Transformation(
    "sampled_mean",
    "memory",
    _SAMPLE_TEXT,
    {"sample": _SAMPLE},
    ("threads", "parts"),
    gain=1.25,
    helps="memory",
)
_KEPT_PACKS = Transformation(
    "kept_packs",
    "memory",
    _KEPT_TEXT,
    {},
    ("threads", "across"),
    gain=1.4,
    helps="memory",
)


def _split_rows(parts: int) -> Transformation:
    return Transformation(
        "split_rows",
        "parallelism",
        f"There are too few rows to fill the device. Let {parts} blocks share each row, and merge the blocks' states "
        "in a second launch.",
        {"parts": parts},
        ("parts",),
        gain=1.5,
    )
