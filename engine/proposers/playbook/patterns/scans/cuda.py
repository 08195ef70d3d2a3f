"""The CUDA template for scans."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.patterns.scans.cuda_kernel import scan_kernel
from engine.proposers.playbook.patterns.scans.program import ScanProgram, as_scan

PLAIN: Choices = {"threads": 256, "items": 1}
"""The choices for a kernel in which each thread scans one element per step."""


class CudaScans(Template):
    """Scans in CUDA C++."""

    name = "scans_cu"
    pattern = "scans"
    language = "cu"

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        plain = Recipe(self.name, dict(PLAIN))
        return [
            Start("items", _MORE_ITEMS.text, plain.with_(_first(as_scan(program)), ("items", "threads"))),
            Start("plain", "Scan the rows in pieces of one element per thread.", plain),
        ]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        found = [_MORE_ITEMS] if recipe.choices["items"] == 1 else []
        return [*found, _SMALLER_BLOCKS] if recipe.choices["threads"] == 256 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        return {"threads": (32, 64, 128, 256, 512), "items": (1, 2, 4, 8, 16)}

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return scan_kernel(as_scan(program), recipe.choices, spec)


def _first(program: ScanProgram) -> Choices:
    """Return the choices of the first kernel."""
    if program.inner > 1:
        return {"items": 8, "threads": 64}
    return {"items": 8, "threads": 256 if program.length >= 2048 else 128 if program.length >= 512 else 32}


_MORE_ITEMS = Transformation(
    "more_items",
    "latency",
    "Give each thread several elements of a piece: the loads are in flight together, and the barriers and shuffles "
    "of a piece serve more elements. Load the next piece while scanning this piece.",
    {"items": 8},
    ("items", "threads"),
    gain=2.0,
    helps="latency",
)
_SMALLER_BLOCKS = Transformation(
    "smaller_blocks",
    "latency",
    "Use fewer threads per block: barriers are cheaper, and the device scans more rows at the same time.",
    {"threads": 128},
    ("threads", "items"),
    gain=1.03,
    helps="latency",
)
