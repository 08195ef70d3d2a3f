"""C++ kernel files for matmuls, with three nested loops, rows of accumulators, or register tiles."""

from __future__ import annotations

from typing import Literal

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.text import banner, indent, omp_for
from engine.proposers.playbook.ir.sizes import factor, text
from engine.proposers.playbook.patterns.gemm.program import MatmulProgram, Operand
from engine.proposers.playbook.patterns.gemm.tiles import cpp_tiles
from engine.proposers.playbook.patterns.gemm.tiles.cpp_finish import (
    finish,
    ops_of,
    pointers,
    preamble,
    tensors_struct,
)
from engine.proposers.playbook.patterns.gemm.tiles.cpp_tiles import Left, Right, TileOptions, Tiles


class MatmulOptions(TileOptions, frozen=True):
    """The choices for a matmul kernel.

    Attributes:
        structure: ``dots`` sums each output separately. ``rows`` adds multiples of rows of the right operand to a row
            of ``chunk`` accumulators. ``tiles`` uses register tiles (:class:`Tiles`).
    """

    structure: Literal["dots", "rows", "tiles"] = "dots"
    chunk: int = 512
    pack_b: bool = False


def tiles_of(program: MatmulProgram, options: MatmulOptions) -> Tiles:
    return cpp_tiles.fitting_tiles(
        options, program.m, program.n, program.k, pack_b=options.pack_b or program.b.col_stride != 1
    )


def matmul_kernel(program: MatmulProgram, options: MatmulOptions, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    tiled = options.structure == "tiles"
    chains = [program.chain]
    lanes = options.lanes if tiled else 1
    names = pointers(chains, program.a.tensor, program.b.tensor)
    outputs = [tensor.name for tensor in spec.outputs]
    batches = f"{program.batch} products of " if program.batch > 1 else ""
    sizes = f"{batches}{program.m} x {program.k} times {program.k} x {program.n}"
    title = f"Matrix product for {spec.name}, tuned for {sizes}."
    lines = [
        *banner(title, ops_of(*chains)),
        "namespace {",
        "",
        *program.size_assertions,
        "",
    ]
    transposes = tiled and _along_columns(program.b)
    lines += [*preamble(chains, lanes, options.math, transposes=transposes), *tensors_struct(names, outputs), ""]
    lines += [*finish(program.chain, program.n, lanes), ""]
    lines += _tiles(program, options) if tiled else _loops(program, options)
    lines += ["", "}  // namespace", "", f"{launch_signature(spec, 'cpp', set(names))} {{"]
    lines += indent([f"const Tensors t{{{', '.join(names)}}};", *_launch(program, options), "return 0;"])
    return "\n".join([*lines, "}"]) + "\n"


def _loops(program: MatmulProgram, options: MatmulOptions) -> list[str]:
    a, b = program.a, program.b
    head = [
        f"constexpr long long kM = {text(program.m)}, kN = {text(program.n)}, kK = {text(program.k)};",
        *(
            [f"constexpr long long kChunk = kN < {options.chunk} ? kN : {options.chunk};"]
            if options.structure == "rows"
            else []
        ),
    ]
    matrices = [f"const float* a = {a.pointer};", f"const float* w = {b.pointer};"]
    if options.structure == "dots":
        body = [
            *matrices,
            "for (long long n = 0; n < kN; ++n) {",
            "  float sum = 0.0f;",
            f"  for (long long k = 0; k < kK; ++k) sum += a[{a.at('m', 'k')}] * w[{b.at('k', 'n')}];",
            "  finish(t, (b * kM + m) * kN + n, n, sum);",
            "}",
        ]
        note = "// Computes row m of product b, one sum at a time."
    else:
        body = [
            *matrices,
            "for (long long n0 = 0; n0 < kN; n0 += kChunk) {",
            "  const long long count = kN - n0 < kChunk ? kN - n0 : kChunk;",
            "  float sums[kChunk] = {};",
            "  for (long long k = 0; k < kK; ++k) {",
            f"    const float value = a[{a.at('m', 'k')}];",
            f"    for (long long j = 0; j < count; ++j) sums[j] += value * w[{b.at('k', '(n0 + j)')}];",
            "  }",
            "  for (long long j = 0; j < count; ++j) finish(t, (b * kM + m) * kN + n0 + j, n0 + j, sums[j]);",
            "}",
        ]
        note = "// Computes row m of product b: each k adds a multiple of a row of the right operand to a row of sums."
    return [*head, note, "inline void row(const Tensors& t, long long b, long long m) {", *indent(body), "}"]


def _tiles(program: MatmulProgram, options: MatmulOptions) -> list[str]:
    tiles = tiles_of(program, options)
    b = program.b
    left = Left(program.a.pointer, program.a.row_stride, program.a.col_stride)
    pack = [f"const float* from = {b.pointer} + {b.at('k0', 'n')};"]
    if not _along_columns(b):
        pack += [
            "const int count = n1 - n < kCols ? int(n1 - n) : kCols;",
            "for (long long k = 0; k < depth; ++k) {",
            f"  for (int j = 0; j < count; ++j) panel[k * kCols + j] = from[{b.at('k', 'j')}];",
            "  for (int j = count; j < kCols; ++j) panel[k * kCols + j] = 0.0f;",
            "}",
        ]
    else:
        pack += [
            "const long long whole = n + kCols <= n1 ? depth / kLanes * kLanes : 0;",
            "for (long long k = 0; k < whole; k += kLanes)",
            "  for (int j = 0; j < kCols; j += kLanes) {",
            "    vec square[kLanes];",
            "#pragma GCC unroll 16",
            f"    for (int i = 0; i < kLanes; ++i) square[i] = load(Wide{{}}, from + {b.at('k', '(j + i)')});",
            "    transpose(square);",
            "#pragma GCC unroll 16",
            "    for (int i = 0; i < kLanes; ++i) store(panel + (k + i) * kCols + j, square[i]);",
            "  }",
            "for (int j = 0; j < kCols; ++j)",
            f"  for (long long k = whole; k < depth; ++k) panel[k * kCols + j] = n + j < n1 ? "
            f"from[{b.at('k', 'j')}] : 0.0f;",
        ]
    right = Right(b.pointer if b.col_stride == 1 else "", b.row_stride, tuple(pack))
    several = tiles.depth > 0
    results = cpp_tiles.finish_row("(b * kM + m + r) * kN + n")
    return [
        *cpp_tiles.constants(tiles, program.m, program.n, program.k),
        "",
        *cpp_tiles.tile_function(tiles, left, several),
        *cpp_tiles.pack_functions(tiles, left, right),
        *cpp_tiles.block_function(tiles, left, right, program.k, results),
    ]


def _along_columns(operand: Operand) -> bool:
    """Return whether a column of the operand is contiguous in memory, but a row is not."""
    return operand.row_stride == 1 and operand.col_stride != 1


def _launch(program: MatmulProgram, options: MatmulOptions) -> list[str]:
    if options.structure == "tiles":
        loop = [
            f"for (long long b = 0; b < {factor(program.batch)}; ++b)",
            "  for (long long m0 = 0; m0 < kM; m0 += kRowBlock)",
            "    for (long long n0 = 0; n0 < kN; n0 += kColBlock)",
            "      block(t, b, m0, m0 + kRowBlock < kM ? m0 + kRowBlock : kM, n0,",
            "            n0 + kColBlock < kN ? n0 + kColBlock : kN);",
        ]
        share = "collapse(3)"
    else:
        loop = [
            f"for (long long b = 0; b < {factor(program.batch)}; ++b)",
            "  for (long long m = 0; m < kM; ++m) row(t, b, m);",
        ]
        share = "collapse(2)"
    return [f"#pragma omp parallel {omp_for(options.schedule)} {share}", *loop] if options.parallel else loop
