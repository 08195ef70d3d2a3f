"""The C++ template for grid convolutions."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cpp_math import POLYNOMIAL
from engine.proposers.playbook.codegen.cpp_options import choices_of, options_of
from engine.proposers.playbook.patterns.gemm.tiles import cpp_transformations as tile_transformations
from engine.proposers.playbook.patterns.gemm.tiles.cpp_finish import ops_of
from engine.proposers.playbook.patterns.grid_conv.cpp_kernel import GridConvOptions, grid_kernel
from engine.proposers.playbook.patterns.grid_conv.program import as_grid_conv
from engine.proposers.playbook.transformations import cpp as shared

_ROWS = 8
"""Filters per tile of the first kernel. Most problems have a multiple of 8 filters, and 16 accumulators fit in
registers.
"""
_MOST_TAPS = 4096
"""Maximum number of taps in a filter. The kernel's source lists every tap."""


class CppGridConv(Template):
    """Grid convolutions in C++ with OpenMP and GCC's vector extensions."""

    name = "grid_conv_cpp"
    pattern = "grid_conv"
    language = "cpp"

    def refusal(self, program: Program) -> str | None:
        conv = as_grid_conv(program)
        if conv.dtype != "float32":
            return f"the model's convolution is in {conv.dtype}, but C++ kernels support only float32"
        depth, height, width = conv.kernel
        if depth * height * width > _MOST_TAPS:
            return f"the convolution's filters have more than {_MOST_TAPS} taps"
        return None

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        conv = as_grid_conv(program)
        text = (
            "Copy each channel to a line of positions with zeros between its rows, so that every tap reads at a "
            "constant distance on this line. Keep a tile of filters by positions in vector registers, and read all "
            "taps in place."
        )
        rows, lanes = min(_ROWS, conv.group_filters), shared.usual_lanes(device)
        plain = GridConvOptions(rows=rows, lanes=lanes)
        shared_lines = GridConvOptions(rows=rows, lanes=lanes, parallel=device.cores > 1)
        return [
            Start("shifted_lines", text, Recipe(self.name, choices_of(shared_lines), ("rows", "vecs"))),
            *(
                [Start("one_core", f"{text} The kernel runs on one core.", Recipe(self.name, choices_of(plain)))]
                if device.cores > 1
                else []
            ),
        ]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        conv, now = as_grid_conv(program), options_of(GridConvOptions, recipe.choices)
        found = []
        if now.rows < min(12, conv.group_filters) and shared.has_avx512(device):
            found.append(tile_transformations.larger_tiles())
        used = ops_of(conv.chain) & POLYNOMIAL
        if now.math == "libm" and used:
            found.append(tile_transformations.polynomials(sorted(used)))
        if not now.parallel and device.cores > 1:
            found.append(tile_transformations.share_blocks(device.cores))
        if now.parallel and now.schedule == "static":
            found.append(shared.dynamic_schedule("blocks of positions", {}, ("blocks",)))
        knobs = self.knobs(program, recipe, device)
        return [*found, shared.tune(tuple(knobs))] if recipe.opened else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        now = options_of(GridConvOptions, recipe.choices)
        found: dict[str, tuple[Choice, ...]] = {
            "rows": (1, 2, 4, 6, 8, 10, 12, 14), "vecs": (1, 2, 3, 4), "lanes": shared.lanes_knob(device),
            "blocks": (1, 2, 4, 8, 16),
        }  # fmt: skip
        return found | ({"schedule": ("static", "dynamic")} if now.parallel else {})

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return grid_kernel(as_grid_conv(program), options_of(GridConvOptions, recipe.choices), spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        exact = recipe.with_({"math": "libm"})
        return exact if exact.choices != recipe.choices else None
