"""The C++ template for convolutions. The template starts with plain loops, then uses a tiled implicit GEMM."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cpp_math import POLYNOMIAL
from engine.proposers.playbook.codegen.cpp_options import choices_of, options_of
from engine.proposers.playbook.patterns.conv.cpp_file import ConvOptions, conv_kernel, tiles_of
from engine.proposers.playbook.patterns.conv.program import FEW_FILTERS, ConvProgram
from engine.proposers.playbook.patterns.gemm.tiles import cpp_transformations as tile_transformations
from engine.proposers.playbook.patterns.gemm.tiles.cpp_finish import ops_of
from engine.proposers.playbook.transformations import cpp as shared


class CppConv(Template):
    """Convolutions in C++ with OpenMP and GCC's vector extensions."""

    name = "conv_cpp"
    pattern = "conv"
    language = "cpp"

    def refusal(self, program: Program) -> str | None:
        dtype = as_conv(program).dtype
        return (
            None
            if dtype == "float32"
            else f"the model's convolution is in {dtype}, but C++ kernels support only float32"
        )

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        conv = as_conv(program)
        end = " All results go to scratch memory, and a second pass pools them." if conv.pool is not None else ""
        direct = Start(
            "direct",
            "Loop over images, filters and pixels. For each pixel, sum the taps inside the image. The code is scalar, "
            f"runs on one core, and is easy to check by reading.{end}",
            Recipe(self.name, choices_of(ConvOptions())),
        )
        rows = Start(
            "rows_of_sums",
            "Loop over images, filters and rows. For each tap, add a multiple of an image row to a row of "
            "accumulators, so that the kernel computes bounds once per row. The kernel runs on one core, without "
            f"blocking.{end}",
            Recipe(self.name, choices_of(ConvOptions(structure="rows"))),
        )
        return [direct, rows] if conv.flops <= tile_transformations.QUICK_FLOPS else [rows]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        conv, now = as_conv(program), options_of(ConvOptions, recipe.choices)
        found = []
        if now.structure == "direct":
            found.append(
                Transformation(
                    "rows_of_sums",
                    "memory",
                    "For each pixel, the kernel visits all taps and checks bounds. Interchange the loops: for each "
                    "tap, add a multiple of an image row to a row of accumulators. The kernel then computes bounds "
                    "once per row, and the inner loop reads memory in order, so that the compiler can vectorize it.",
                    {"structure": "rows"},
                    (),
                    gain=4.0,
                    helps="compute",
                )
            )
        if now.structure == "rows" and now.filters == 1 and conv.m > 1:
            found.append(
                Transformation(
                    "filter_block",
                    "memory",
                    "Every filter reads the same image rows again. Keep rows of accumulators for several filters, so "
                    "that each loaded row serves all these filters.",
                    {"filters": 4},
                    ("filters",),
                    gain=1.5,
                    helps="memory",
                )
            )
        if now.structure == "tiles":
            found += tile_transformations.transformations(
                tiles_of(conv, now), device, direct=False, height=conv.m, depth=conv.k
            )
        elif conv.m >= FEW_FILTERS:
            found.append(_implicit_product(conv, device, 16.0 if now.structure == "direct" else 4.0))
        if conv.pool is not None and not now.fused:
            found.append(
                Transformation(
                    "fuse_pooling",
                    "memory",
                    "The kernel writes all results to memory and reads them again for pooling, although a window "
                    "needs only a few rows. Compute the inputs of a few pooled rows in a buffer that stays in the "
                    "cache, and pool these inputs immediately.",
                    {"fused": True},
                    ("pool_rows",),
                    gain=1.2,
                    helps="memory",
                )
            )
        used = ops_of(*([conv.before] if conv.before is not None else [conv.chain])) & POLYNOMIAL
        if now.math == "libm" and now.structure == "tiles" and used:
            found.append(tile_transformations.polynomials(sorted(used)))
        if not now.parallel and device.cores > 1:
            found.append(tile_transformations.share_blocks(device.cores))
        knobs = self.knobs(program, recipe, device)
        return [*found, shared.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        conv, now = as_conv(program), options_of(ConvOptions, recipe.choices)
        found: dict[str, tuple[Choice, ...]] = {}
        if now.structure == "tiles":
            found |= tile_transformations.knobs(conv.k, device)
        elif now.structure == "rows":
            found["filters"] = (1, 2, 3, 4, 6, 8, 12)
        if now.fused:
            found["pool_rows"] = (1, 2, 3, 4, 6, 8, 16)
        return found | ({"schedule": ("static", "dynamic")} if now.parallel else {})

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return conv_kernel(as_conv(program), options_of(ConvOptions, recipe.choices), spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        exact = recipe.with_({"math": "libm"})
        return exact if exact.choices != recipe.choices else None


def _implicit_product(conv: ConvProgram, device: DeviceFact, gain: float) -> Transformation:
    lanes = tile_transformations.lanes_of(device, conv.n)
    changes: Choices = {
        "structure": "tiles",
        "lanes": lanes,
        "vecs": 2 if conv.n > lanes else 1,
        "rows": min(6, conv.m),
    }
    return Transformation(
        "implicit_product",
        "compute",
        "A convolution is a product of matrices: filters times patches of the image. Copy the patches of one block of "
        "pixels at a time into panels, and multiply in tiles of accumulators that stay in vector registers. A loaded "
        "vector of pixels then serves several filters.",
        changes,
        ("rows", "vecs", "lanes"),
        gain=gain,
        helps="compute",
    )


def as_conv(program: Program) -> ConvProgram:
    assert isinstance(program, ConvProgram), "the convolution templates support only convolution programs"
    return program
