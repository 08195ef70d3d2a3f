"""Convolutions in C++ as a template: plain loops first, then what makes them fast, move by move."""

from __future__ import annotations

import msgspec

from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook import cpp_moves
from engine.proposers.playbook.conv.cpp_file import ConvOptions, conv_kernel, tiles_of
from engine.proposers.playbook.conv.program import ConvProgram
from engine.proposers.playbook.cpp_math import POLYNOMIAL
from engine.proposers.playbook.gemm import cpp_tile_moves
from engine.proposers.playbook.gemm.cpp_finish import ops_of
from engine.proposers.playbook.ir import Program
from engine.proposers.playbook.template import Choice, Choices, First, Move, Recipe, Template


class CppConv(Template):
    """The conv family in C++ with OpenMP and GCC's vector extensions."""

    name = "conv_cpp"
    family = "conv"
    language = "cpp"

    def refusal(self, program: Program) -> str | None:
        dtype = as_conv(program).dtype
        return None if dtype == "float32" else f"it convolves {dtype} and its C++ templates are for float32"

    def first(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[First]:
        conv = as_conv(program)
        end = " All results go to scratch memory, and a second pass pools them." if conv.pool is not None else ""
        direct = First(
            "direct",
            "Loops over images, filters and pixels; each pixel sums its taps by itself, inside the image only. Scalar "
            f"and on one core, to be checked by reading.{end}",
            Recipe(self.name, choices_of(ConvOptions())),
        )
        rows = First(
            "rows_of_sums",
            "Loops over images, filters and rows: each tap adds a multiple of a row of the image to a row of sums, so "
            f"that bounds are worked out once a row. On one core, without blocking.{end}",
            Recipe(self.name, choices_of(ConvOptions(structure="rows"))),
        )
        return [direct, rows] if conv.flops <= cpp_tile_moves.QUICK_FLOPS else [rows]

    def moves(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Move]:
        conv, now = as_conv(program), options_of(recipe.choices)
        found = []
        if now.structure == "direct":
            found.append(
                Move(
                    "rows_of_sums",
                    "memory",
                    "Each pixel walks over all taps, with bounds checked at every step. Exchange the loops: a tap "
                    "adds a multiple of a row of the image to a row of sums. The bounds are worked out once per row, "
                    "and the inner loop runs along memory, so that the compiler can use vectors.",
                    {"structure": "rows"},
                    (),
                    gain=4.0,
                    helps="compute",
                )
            )
        if now.structure == "rows" and now.filters == 1 and conv.m > 1:
            found.append(
                Move(
                    "filter_block",
                    "memory",
                    "Every filter reads the same rows of the image again. Keep rows of sums of several filters, so "
                    "that a row that was loaded once serves them all.",
                    {"filters": 4},
                    ("filters",),
                    gain=1.5,
                    helps="memory",
                )
            )
        if now.structure != "tiles":
            found.append(_implicit_product(conv, 16.0 if now.structure == "direct" else 4.0))
        else:
            found += cpp_tile_moves.moves(tiles_of(conv, now), direct=False, depth=conv.k)
        if conv.pool is not None and not now.fused:
            found.append(
                Move(
                    "fuse_pooling",
                    "memory",
                    "All results go to memory and come back to be pooled, though a window needs a few rows only. "
                    "Compute the rows behind a few pooled rows into a buffer that stays in the cache, and pool them at "
                    "once.",
                    {"fused": True},
                    ("pool_rows",),
                    gain=1.2,
                    helps="memory",
                )
            )
        used = ops_of(*([conv.before] if conv.before is not None else [conv.chain])) & POLYNOMIAL
        if now.math == "libm" and now.structure == "tiles" and used:
            found.append(cpp_tile_moves.polynomials(sorted(used)))
        if not now.parallel and device.cores > 1:
            found.append(cpp_tile_moves.share_blocks(device.cores))
        knobs = self.knobs(program, recipe, device)
        return [*found, cpp_moves.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        conv, now = as_conv(program), options_of(recipe.choices)
        found: dict[str, tuple[Choice, ...]] = {}
        if now.structure == "tiles":
            found |= cpp_tile_moves.knobs(conv.k)
        elif now.structure == "rows":
            found["filters"] = (1, 2, 3, 4, 6, 8, 12)
        if now.fused:
            found["pool_rows"] = (1, 2, 3, 4, 6, 8, 16)
        return found | ({"schedule": ("static", "dynamic")} if now.parallel else {})

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return conv_kernel(as_conv(program), options_of(recipe.choices), spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        exact = recipe.with_({"math": "libm"})
        return exact if exact.choices != recipe.choices else None


def _implicit_product(conv: ConvProgram, gain: float) -> Move:
    changes: Choices = {
        "structure": "tiles",
        "lanes": 16 if conv.n > 8 else 8,
        "vecs": 2 if conv.n > 16 else 1,
        "rows": min(6, conv.m),
    }
    return Move(
        "implicit_product",
        "compute",
        "A convolution is a product of matrices: filters times patches of the image. Copy the patches of a block of "
        "pixels into panels, never the whole matrix, and multiply in tiles of sums that stay in vector registers: a "
        "loaded vector of pixels serves several filters.",
        changes,
        ("rows", "vecs", "lanes"),
        gain=gain,
        helps="compute",
    )


def as_conv(program: Program) -> ConvProgram:
    assert isinstance(program, ConvProgram), "the conv templates take convolutions"
    return program


def options_of(choices: Choices) -> ConvOptions:
    return msgspec.convert(choices, ConvOptions)


def choices_of(options: ConvOptions) -> Choices:
    choices: Choices = msgspec.to_builtins(options)
    return choices
