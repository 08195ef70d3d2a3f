"""The CUDA template for pooling."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.patterns.pooling.cuda_kernel import pool_kernel
from engine.proposers.playbook.patterns.pooling.program import PoolProgram, as_pooling

PLAIN: Choices = {"threads": 256, "rows": 1}
"""The choices for a kernel with a thread per output."""


class CudaPooling(Template):
    """Pooling in CUDA C++."""

    name = "pooling_cu"
    pattern = "pooling"
    language = "cu"

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        plain = Recipe(self.name, dict(PLAIN))
        found = [
            Start(
                "plain",
                "Give each output a thread that folds the output's window, and let the cache serve overlapping reads.",
                plain,
            )
        ]
        if _overlaps(as_pooling(program)):
            shared = plain.with_({"rows": 4}, ("rows", "threads"))
            found.insert(0, Start("shared_rows", _SHARED_ROWS.text, shared))
        return found

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        found = [_SHARED_ROWS] if recipe.choices["rows"] == 1 and _overlaps(as_pooling(program)) else []
        return [*found, _SMALLER_BLOCKS] if recipe.choices["threads"] == 256 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        found: dict[str, tuple[Choice, ...]] = {"threads": (128, 256, 512)}
        if _overlaps(as_pooling(program)):
            found["rows"] = (1, 2, 4, 8)
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return pool_kernel(as_pooling(program), recipe.choices, spec)


def _overlaps(program: PoolProgram) -> bool:
    """Return whether vertically adjacent windows share rows of the image."""
    return program.size[1] > 1 and program.stride[1] < (program.window[1] - 1) * program.dilation[1] + 1


_SHARED_ROWS = Transformation(
    "shared_rows",
    "memory",
    "Vertically adjacent windows share rows of the image. Let a thread compute several vertically adjacent outputs, "
    "and fold the columns of each image row once for all these outputs. Adjacent threads still read and write "
    "adjacent elements.",
    {"rows": 4},
    ("rows", "threads"),
    gain=1.5,
    helps="memory",
)
_SMALLER_BLOCKS = Transformation(
    "smaller_blocks",
    "latency",
    "Use blocks of fewer threads, so that a multiprocessor waits for fewer warps before it starts the next block.",
    {"threads": 128},
    ("threads",),
    gain=1.02,
    helps="latency",
)
