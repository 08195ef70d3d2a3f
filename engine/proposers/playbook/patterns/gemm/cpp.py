"""The C++ template for matmuls. The template starts with plain loops, then uses register tiles."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cpp_math import POLYNOMIAL
from engine.proposers.playbook.codegen.cpp_options import choices_of, options_of
from engine.proposers.playbook.patterns.gemm.cpp_file import MatmulOptions, matmul_kernel, tiles_of
from engine.proposers.playbook.patterns.gemm.program import MatmulProgram
from engine.proposers.playbook.patterns.gemm.tiles import cpp_transformations as tile_transformations
from engine.proposers.playbook.patterns.gemm.tiles.cpp_finish import ops_of
from engine.proposers.playbook.transformations import cpp as shared

_BLOCKS_PER_CORE = 2
"""Minimum number of blocks per core that gives each core enough work."""
_ROWS, _COL_TILES = 12, 4
"""Maximum number of rows per tile in a first kernel, and number of tiles per row of a block."""


class CppMatmul(Template):
    """Matmuls in C++ with OpenMP and GCC's vector extensions."""

    name = "matmul_cpp"
    pattern = "matmul"
    language = "cpp"

    def refusal(self, program: Program) -> str | None:
        product = as_matmul(program)
        other = next((one for one in (product.a, product.b) if one.dtype != "float32"), None)
        return None if other is None else f"`{other.tensor}` is {other.dtype}, but C++ kernels support only float32"

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        product = as_matmul(program)
        dots = Start(
            "dots",
            "Use three nested loops: each result is one sum over k. The code is scalar, runs on one core, and is easy "
            "to check by reading.",
            Recipe(self.name, choices_of(MatmulOptions())),
        )
        rows = Start(
            "rows_of_sums",
            "Use three nested loops with the columns innermost. For each k, add a multiple of a row of the right "
            "operand to a row of accumulators, so the kernel reads memory in order. The kernel runs on one core, "
            "without blocking.",
            Recipe(self.name, choices_of(MatmulOptions(structure="rows"))),
        )
        if product.n == 1 or product.b.row_stride == 1:
            return [dots]
        return [dots, rows] if product.flops <= tile_transformations.QUICK_FLOPS else [rows]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        product, now = as_matmul(program), options_of(MatmulOptions, recipe.choices)
        found = []
        if now.structure == "dots" and product.n > 1:
            found.append(
                Transformation(
                    "rows_of_sums",
                    "memory",
                    "For each output, the loop over k walks down a column of the right operand and touches a new cache "
                    "line at each step. Interchange the loops: for each k, add a multiple of a whole row of the right "
                    "operand to a row of accumulators. The kernel then reads memory in order, and the compiler can "
                    "vectorize the loop.",
                    {"structure": "rows"},
                    ("chunk",),
                    gain=6.0 if product.b.col_stride == 1 else 0.9,
                    helps="memory",
                )
            )
        if now.structure != "tiles":
            gain = 12.0 if now.structure == "dots" else 4.0
            found.append(tile_transformations.register_tiles(_tiles_for(product, device), gain))
        else:
            tiles = tiles_of(product, now)
            found += tile_transformations.transformations(
                tiles, device, direct=product.b.col_stride == 1, height=product.m, depth=product.k
            )
        if now.math == "libm" and now.structure == "tiles" and ops_of(product.chain) & POLYNOMIAL:
            found.append(tile_transformations.polynomials(sorted(ops_of(product.chain) & POLYNOMIAL)))
        if not now.parallel and device.cores > 1:
            found.append(tile_transformations.share_blocks(device.cores))
        knobs = self.knobs(program, recipe, device)
        return [*found, shared.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        product, now = as_matmul(program), options_of(MatmulOptions, recipe.choices)
        if now.structure == "tiles":
            found = tile_transformations.knobs(product.k, device)
        elif now.structure == "rows":
            found = {"chunk": (128, 256, 512, 1024, 2048, 4096)}
        else:
            found = {}
        return found | ({"schedule": ("static", "dynamic")} if now.parallel else {})

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return matmul_kernel(as_matmul(program), options_of(MatmulOptions, recipe.choices), spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        exact = recipe.with_({"math": "libm"})
        return exact if exact.choices != recipe.choices else None


def _tiles_for(product: MatmulProgram, device: DeviceFact) -> Choices:
    """Return register tiles that are no wider than the output.

    Blocks have many rows if each block has to reorder its part of the right operand.
    """
    lanes = tile_transformations.lanes_of(device, product.n)
    vecs = 2 if product.n > lanes else 1
    changes: Choices = {"structure": "tiles", "lanes": lanes, "vecs": vecs, "rows": min(6, product.m)}
    if product.b.col_stride != 1:
        changes["row_tiles"] = _row_tiles(product, _COL_TILES * vecs * lanes, device.cores)
    return changes


def _row_tiles(product: MatmulProgram, block_cols: int, cores: int) -> int:
    """Return 32 or 16 row tiles per block if that leaves enough blocks for all cores. Otherwise, return 8."""
    for row_tiles in (32, 16):
        blocks = product.batch * -(-product.m // (row_tiles * _ROWS)) * -(-product.n // block_cols)
        if blocks >= _BLOCKS_PER_CORE * cores:
            return row_tiles
    return 8


def as_matmul(program: Program) -> MatmulProgram:
    assert isinstance(program, MatmulProgram), "the matmul templates support only matrix products"
    return program
