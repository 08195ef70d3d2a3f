"""Kernel files of a matrix product in C++: three nested loops, rows of sums, or register tiles."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.cpp_text import banner, indent, omp_for
from engine.proposers.playbook.gemm import cpp_tiles
from engine.proposers.playbook.gemm.cpp_finish import Math, finish, ops_of, pointers, preamble, tensors_struct
from engine.proposers.playbook.gemm.cpp_tiles import Left, Right, Tiles
from engine.proposers.playbook.matmul.program import MatmulProgram, Operand, batch_text
from engine.proposers.playbook.signature import launch_signature
from engine.proposers.playbook.sizes import factor, stride, text


class MatmulOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """``structure``: ``dots`` sums each result by itself, ``rows`` adds multiples of rows of the right operand to a
    row of ``chunk`` sums, ``tiles`` is :class:`Tiles`, whose fields these are."""

    structure: Literal["dots", "rows", "tiles"] = "dots"
    chunk: int = 512
    parallel: bool = False
    schedule: Literal["static", "dynamic"] = "static"
    rows: int = 6
    vecs: int = 2
    lanes: int = 16
    depth: int = 0
    row_tiles: int = 8
    col_tiles: int = 4
    pack_a: bool = False
    pack_b: bool = False
    unroll: int = 1
    prefetch: bool = False
    math: Math = "libm"


def tiles_of(program: MatmulProgram, options: MatmulOptions) -> Tiles:
    return cpp_tiles.fitting_tiles(
        options, program.m, program.n, program.k, pack_b=options.pack_b or program.b.col_stride != 1
    )


def matmul_kernel(program: MatmulProgram, options: MatmulOptions, spec: ProblemSpec) -> str:
    """The kernel source."""
    tiled = options.structure == "tiles"
    chains = [program.chain]
    lanes = options.lanes if tiled else 1
    names = pointers(chains, program.a.tensor, program.b.tensor)
    outputs = [tensor.name for tensor in spec.outputs]
    batches = f"{program.batch} products of " if program.batch > 1 else ""
    sizes = f"{batches}{program.m} x {program.k} times {program.k} x {program.n}"
    title = f"Matrix product for {spec.name}, searched at {sizes}."
    lines = [
        *banner(title, ops_of(*chains)),
        "namespace {",
        "",
        *program.demands,
        "",
    ]
    lines += [*preamble(chains, lanes, options.math), *tensors_struct(names, outputs), ""]
    lines += [*finish(program.chain, program.n, lanes), ""]
    lines += _tiles(program, options) if tiled else _loops(program, options)
    lines += ["", "}  // namespace", "", f"{launch_signature(spec, 'cpp', set(names))} {{"]
    lines += indent([f"const Tensors t{{{', '.join(names)}}};", *_launch(program, options), "return 0;"])
    return "\n".join([*lines, "}"]) + "\n"


def _pointer(operand: Operand) -> str:
    parts = [f"t.{operand.tensor}", text(operand.offset) if operand.offset else "", batch_text(operand.batch, "b")]
    return " + ".join(part for part in parts if part)


def _at(operand: Operand, row: str, col: str) -> str:
    """The address of an element, relative to its matrix."""
    terms = []
    for index, step in ((row, operand.row_stride), (col, operand.col_stride)):
        if step:
            terms.append(index if step == 1 else f"{index} * {stride(step)}")
    return " + ".join(terms) or "0"


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
    matrices = [f"const float* a = {_pointer(a)};", f"const float* w = {_pointer(b)};"]
    if options.structure == "dots":
        body = [
            *matrices,
            "for (long long n = 0; n < kN; ++n) {",
            "  float sum = 0.0f;",
            f"  for (long long k = 0; k < kK; ++k) sum += a[{_at(a, 'm', 'k')}] * w[{_at(b, 'k', 'n')}];",
            "  finish(t, (b * kM + m) * kN + n, n, sum);",
            "}",
        ]
        note = "// Row m of product b: one sum after the other."
    else:
        body = [
            *matrices,
            "for (long long n0 = 0; n0 < kN; n0 += kChunk) {",
            "  const long long count = kN - n0 < kChunk ? kN - n0 : kChunk;",
            "  float sums[kChunk] = {};",
            "  for (long long k = 0; k < kK; ++k) {",
            f"    const float value = a[{_at(a, 'm', 'k')}];",
            f"    for (long long j = 0; j < count; ++j) sums[j] += value * w[{_at(b, 'k', '(n0 + j)')}];",
            "  }",
            "  for (long long j = 0; j < count; ++j) finish(t, (b * kM + m) * kN + n0 + j, n0 + j, sums[j]);",
            "}",
        ]
        note = "// Row m of product b: a row of sums, to which each k adds a multiple of a row of the right operand."
    return [*head, note, "inline void row(const Tensors& t, long long b, long long m) {", *indent(body), "}"]


def _tiles(program: MatmulProgram, options: MatmulOptions) -> list[str]:
    tiles = tiles_of(program, options)
    b = program.b
    left = Left(_pointer(program.a), program.a.row_stride, program.a.col_stride)
    pack = [f"const float* from = {_pointer(b)} + {_at(b, 'k0', 'n')};"]
    if b.col_stride == 1 or b.row_stride != 1:
        pack += [
            "const int count = n1 - n < kCols ? int(n1 - n) : kCols;",
            "for (long long k = 0; k < depth; ++k) {",
            f"  for (int j = 0; j < count; ++j) panel[k * kCols + j] = from[{_at(b, 'k', 'j')}];",
            "  for (int j = count; j < kCols; ++j) panel[k * kCols + j] = 0.0f;",
            "}",
        ]
    else:
        pack += [
            "for (int j = 0; j < kCols; ++j)  // along memory",
            f"  for (long long k = 0; k < depth; ++k) panel[k * kCols + j] = n + j < n1 ? "
            f"from[{_at(b, 'k', 'j')}] : 0.0f;",
        ]
    right = Right(_pointer(b) if b.col_stride == 1 else "", b.row_stride, tuple(pack))
    several = tiles.depth > 0
    results = cpp_tiles.finish_row("(b * kM + m + r) * kN + n")
    return [
        *cpp_tiles.constants(tiles, program.m, program.n, program.k),
        "",
        *cpp_tiles.tile_function(tiles, left, several),
        *cpp_tiles.pack_functions(tiles, left, right),
        *cpp_tiles.block_function(tiles, left, right, program.k, results),
    ]


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
    return [f"#pragma omp parallel {omp_for(options.schedule, 0)} {share}", *loop] if options.parallel else loop
