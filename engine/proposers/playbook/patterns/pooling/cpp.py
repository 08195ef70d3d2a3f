"""The C++ template for pooling."""

from __future__ import annotations

from math import prod

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cpp_options import choices_of, options_of
from engine.proposers.playbook.patterns.pooling.cpp_kernel import MAX_LINE, PoolOptions, pool_kernel
from engine.proposers.playbook.patterns.pooling.program import PoolProgram, as_pooling
from engine.proposers.playbook.transformations import cpp as shared


class CppPooling(Template):
    """Pooling in C++ with OpenMP."""

    name = "pooling_cpp"
    pattern = "pooling"
    language = "cpp"

    def refusal(self, program: Program) -> str | None:
        pool = as_pooling(program)
        if max(pool.image[2], pool.size[2]) > MAX_LINE:
            return f"the model pools rows of {pool.image[2]} elements, and C++ kernels support at most {MAX_LINE}"
        return None

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        first = PoolOptions(separable=_has_rows(as_pooling(program)), rows=8, parallel=device.cores > 1)
        text = (
            "First fold the rows of a window into one row, then the columns of this row. A window of k x k elements "
            "then costs 2 k steps instead of k x k. Both loops run over adjacent elements, and threads share the "
            "rows."
        )
        plain = "Fold all elements of each window on one core. The code is easy to check by reading."
        return [
            Start("separable", text, Recipe(self.name, choices_of(first), ("rows",))),
            Start("plain", plain, Recipe(self.name, choices_of(PoolOptions()))),
        ]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        pool, now = as_pooling(program), options_of(PoolOptions, recipe.choices)
        found = []
        if not now.separable and _has_rows(pool):
            found.append(_SEPARABLE)
        if not now.parallel and device.cores > 1:
            found.append(_share_rows(device.cores))
        if now.parallel and now.schedule == "static":
            found.append(shared.dynamic_schedule("rows", {}, ("schedule", "rows")))
        knobs = self.knobs(program, recipe, device)
        return [*found, shared.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        if not recipe.choices["parallel"]:
            return {}
        return {"rows": (1, 2, 4, 8, 16, 64), "schedule": ("static", "guided", "dynamic")}

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return pool_kernel(as_pooling(program), options_of(PoolOptions, recipe.choices), spec)


def _has_rows(program: PoolProgram) -> bool:
    return prod(program.window[:2]) > 1


_SEPARABLE = Transformation(
    "separable_window",
    "compute",
    "Windows overlap and share columns. First fold the rows of a window into one row, then the columns of this row. "
    "A window of k x k elements then costs 2 k steps instead of k x k.",
    {"separable": True},
    gain=1.5,
    helps="compute",
)


def _share_rows(cores: int) -> Transformation:
    return Transformation(
        "share_rows",
        "parallelism",
        f"Only one of {cores} cores has work. Rows of the output are independent: share them among OpenMP threads.",
        {"parallel": True, "rows": 8},
        ("rows", "schedule"),
        gain=1.0 + 0.8 * (cores - 1),
    )
