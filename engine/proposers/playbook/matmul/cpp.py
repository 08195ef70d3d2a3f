"""Matrix products in C++ as a template: plain loops first, then what makes them fast, move by move."""

from __future__ import annotations

import msgspec

from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook import cpp_moves
from engine.proposers.playbook.cpp_math import POLYNOMIAL
from engine.proposers.playbook.gemm import cpp_tile_moves
from engine.proposers.playbook.gemm.cpp_finish import ops_of
from engine.proposers.playbook.ir import Program
from engine.proposers.playbook.matmul.cpp_file import MatmulOptions, matmul_kernel, tiles_of
from engine.proposers.playbook.matmul.program import MatmulProgram
from engine.proposers.playbook.template import Choice, Choices, First, Move, Recipe, Template


class CppMatmul(Template):
    """The matmul family in C++ with OpenMP and GCC's vector extensions."""

    name = "matmul_cpp"
    family = "matmul"
    language = "cpp"

    def refusal(self, program: Program) -> str | None:
        product = as_matmul(program)
        other = next((one for one in (product.a, product.b) if one.dtype != "float32"), None)
        return None if other is None else f"`{other.tensor}` is {other.dtype} and its C++ templates are for float32"

    def first(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[First]:
        product = as_matmul(program)
        dots = First(
            "dots",
            "Three nested loops: each result is a sum over k, taken by itself. Scalar and on one core, to be checked "
            "by reading.",
            Recipe(self.name, choices_of(MatmulOptions())),
        )
        rows = First(
            "rows_of_sums",
            "Three nested loops with the columns innermost: each k adds a multiple of a row of the right operand to a "
            "row of sums, so that memory is read in order. On one core, without blocking.",
            Recipe(self.name, choices_of(MatmulOptions(structure="rows"))),
        )
        if product.n == 1 or product.b.row_stride == 1:
            return [dots]
        return [dots, rows] if product.flops <= cpp_tile_moves.QUICK_FLOPS else [rows]

    def moves(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Move]:
        product, now = as_matmul(program), options_of(recipe.choices)
        found = []
        if now.structure == "dots" and product.n > 1:
            found.append(
                Move(
                    "rows_of_sums",
                    "memory",
                    "For each result the loop over k walks down a column of the right operand, a new cache line at "
                    "each step. Exchange the loops: keep a row of sums and add to it a multiple of a whole row of the "
                    "right operand for each k, so that memory is read in order and the compiler can use vectors.",
                    {"structure": "rows"},
                    ("chunk",),
                    gain=6.0 if product.b.col_stride == 1 else 0.9,
                    helps="memory",
                )
            )
        if now.structure != "tiles":
            found.append(cpp_tile_moves.register_tiles(_tiles_for(product), 12.0 if now.structure == "dots" else 4.0))
        else:
            tiles = tiles_of(product, now)
            found += cpp_tile_moves.moves(tiles, direct=product.b.col_stride == 1, depth=product.k)
        if now.math == "libm" and now.structure == "tiles" and ops_of(product.chain) & POLYNOMIAL:
            found.append(cpp_tile_moves.polynomials(sorted(ops_of(product.chain) & POLYNOMIAL)))
        if not now.parallel and device.cores > 1:
            found.append(cpp_tile_moves.share_blocks(device.cores))
        knobs = self.knobs(program, recipe, device)
        return [*found, cpp_moves.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        product, now = as_matmul(program), options_of(recipe.choices)
        if now.structure == "tiles":
            found = cpp_tile_moves.knobs(product.k)
        elif now.structure == "rows":
            found = {"chunk": (128, 256, 512, 1024, 2048, 4096)}
        else:
            found = {}
        return found | ({"schedule": ("static", "dynamic")} if now.parallel else {})

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return matmul_kernel(as_matmul(program), options_of(recipe.choices), spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        exact = recipe.with_({"math": "libm"})
        return exact if exact.choices != recipe.choices else None


def _tiles_for(product: MatmulProgram) -> Choices:
    """Register tiles no wider than the product."""
    lanes = 16 if product.n > 8 else 8
    return {"structure": "tiles", "lanes": lanes, "vecs": 2 if product.n > lanes else 1, "rows": min(6, product.m)}


def as_matmul(program: Program) -> MatmulProgram:
    assert isinstance(program, MatmulProgram), "the matmul templates take matrix products"
    return program


def options_of(choices: Choices) -> MatmulOptions:
    return msgspec.convert(choices, MatmulOptions)


def choices_of(options: MatmulOptions) -> Choices:
    choices: Choices = msgspec.to_builtins(options)
    return choices
