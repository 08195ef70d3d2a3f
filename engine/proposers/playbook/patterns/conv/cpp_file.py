"""C++ kernel files for convolution: nested loops, row sums, or a tiled implicit GEMM."""

from __future__ import annotations

from typing import Literal

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import fixed_sizes
from engine.proposers.playbook.codegen.text import banner, indent, omp_for
from engine.proposers.playbook.patterns.conv import cpp_text
from engine.proposers.playbook.patterns.conv.program import ConvProgram
from engine.proposers.playbook.patterns.gemm.tiles import cpp_tiles
from engine.proposers.playbook.patterns.gemm.tiles.cpp_finish import (
    finish,
    ops_of,
    pointers,
    preamble,
    tensors_struct,
)
from engine.proposers.playbook.patterns.gemm.tiles.cpp_tiles import Left, Right, TileOptions, Tiles


class ConvOptions(TileOptions, frozen=True):
    """The choices for a convolution kernel.

    Attributes:
        structure: ``direct`` sums each pixel separately. ``rows`` adds multiples of image rows to rows of accumulators
            for ``filters`` filters. ``tiles`` is an implicit GEMM with register tiles (:class:`Tiles`).
        fused: Whether to pool ``pool_rows`` rows as soon as their inputs are ready, instead of in a second pass.
    """

    structure: Literal["direct", "rows", "tiles"] = "direct"
    filters: int = 1
    fused: bool = False
    pool_rows: int = 4
    pack_b: bool = True


def tiles_of(program: ConvProgram, options: ConvOptions) -> Tiles:
    return cpp_tiles.fitting_tiles(options, program.m, program.n, program.k, pack_b=True)


def conv_kernel(program: ConvProgram, options: ConvOptions, spec: ProblemSpec) -> str:
    """Return the source of a C++ convolution kernel."""
    tiled = options.structure == "tiles"
    lanes = options.lanes if tiled else 1
    chains = [program.chain, *([program.before] if program.before is not None else [])]
    names = pointers(chains, program.x, program.w)
    outputs = [tensor.name for tensor in spec.outputs]
    (high, wide), (kh, kw) = program.image, program.kernel
    title = (
        f"Convolution for {spec.name}: {program.images} images of {program.channels} x {high} x {wide}, "
        f"{program.filters} filters of {kh} x {kw}{', then max pooling' if program.pool else ''}."
    )
    lines = [
        *banner(title, ops_of(*chains)),
        "namespace {",
        "",
        *fixed_sizes(tensor for tensor in spec.tensors if tensor.name in names),
        "",
    ]
    lines += [*preamble(chains, lanes, options.math), *tensors_struct(names, outputs), ""]
    lines += cpp_text.constants(program)
    if program.before is not None:
        lines += finish(program.before, program.n, lanes, "keep", "to")
        lines += finish(program.chain, program.columns, 1)
        lines += cpp_text.pool_function(program)
    else:
        lines += finish(program.chain, program.n, lanes)
    lines += _tiles(program, options) if tiled else _loops(program, options)
    uses_workspace = program.pool is not None and not options.fused
    lines += ["", "}  // namespace", ""]
    if uses_workspace:
        lines += [f'extern "C" size_t workspace_bytes(void) {{ return {program.workspace_bytes}; }}', ""]
    used = {*names, *(["workspace"] if uses_workspace else [])}
    lines += [f"{launch_signature(spec, 'cpp', used)} {{"]
    lines += indent([f"const Tensors t{{{', '.join(names)}}};", *_launch(program, options), "return 0;"])
    return "\n".join([*lines, "}"]) + "\n"


def _row_done(program: ConvProgram, options: ConvOptions, sums: str, n: str, plane: str = "(b * kM + m)") -> list[str]:
    """Return statements that pass a whole row of scalar sums to the epilogue."""
    if program.pool is None:
        call = f"finish(t, {plane} * kN + {n} + c, {n} + c, {sums}[c]);"
    else:
        call = f"keep(t, {plane} * kN + {n} + c, {n} + c, {sums}[c], to + (m - m0) * pitch + ({n} - n0) + c);"
    return [f"for (long long c = 0; c < kOutWide; ++c) {call}"]


def _loops(program: ConvProgram, options: ConvOptions) -> list[str]:
    """Return the function ``block``, which computes rows ``[n0, n1) / kOutWide`` of filters ``[m0, m1)``."""
    extra = ", float* to, long long pitch" if program.pool is not None else ""
    image, weights = cpp_text.image_pointer(program), cpp_text.weight_pointer(program)
    per = options.filters if options.structure == "rows" else 1
    body = [f"const float* image = {image};", f"const float* weights = {weights};"]
    if options.structure == "direct":
        inner = [
            "float sums[kOutWide];",
            "for (long long x = 0; x < kOutWide; ++x) {",
            "  float sum = 0.0f;",
            *indent(cpp_text.taps(program, ["sum += weights[m * kK + tap] * image[at];"])),
            "  sums[x] = sum;",
            "}",
            *_row_done(program, options, "sums", "y * kOutWide"),
        ]
        body += ["for (long long m = m0; m < m1; ++m) {", *_each_row(inner), "}"]
        note = "// Computes rows of filters [m0, m1), each pixel separately."
    else:
        inner = [
            "const int count = m1 - first < kFilters ? int(m1 - first) : kFilters;",
            "float sums[kFilters][kOutWide] = {};",
            *cpp_text.tap_rows(
                program,
                [
                    "for (int f = 0; f < count; ++f) {",
                    "  const float value = weights[(first + f) * kK + tap];",
                    "  for (long long x = low; x < high; ++x) sums[f][x] += value * from[x * kStep];",
                    "}",
                ],
            ),
            "for (int f = 0; f < count; ++f) {",
            "  const long long m = first + f;",
            *indent(_row_done(program, options, "sums[f]", "y * kOutWide")),
            "}",
        ]
        body = [f"constexpr int kFilters = {min(per, program.m)};", *body]
        body += ["for (long long first = m0; first < m1; first += kFilters) {", *_each_row(inner), "}"]
        note = "// Computes rows of filters [m0, m1): each tap adds a multiple of an image row to the sums."
    head = (
        f"void block(const Tensors& t, long long b, long long m0, long long m1, long long n0, long long n1{extra}) {{"
    )
    return [note, head, *indent(body), "}"]


def _each_row(body: list[str]) -> list[str]:
    return indent(["for (long long y = n0 / kOutWide; y < n1 / kOutWide; ++y) {", *indent(body), "}"])


def _tiles(program: ConvProgram, options: ConvOptions) -> list[str]:
    tiles = tiles_of(program, options)
    left = Left(cpp_text.weight_pointer(program), program.k, 1)
    right = Right("", 0, tuple(cpp_text.pack_panel(program)))
    index = "(b * kM + m + r) * kN + n"
    if program.pool is None:
        results, extra = cpp_tiles.finish_row(index), ""
    else:
        results = [
            "float* at = to + (m + r - m0) * pitch + (n - n0);",
            *cpp_tiles.finish_row(index, "keep", ", at + c"),
        ]
        extra = ", float* to, long long pitch"
    return [
        *cpp_tiles.constants(tiles, program.m, program.n, program.k)[1:],
        "",
        *cpp_tiles.tile_function(tiles, left, tiles.depth > 0),
        *cpp_tiles.pack_functions(tiles, left, right),
        *cpp_tiles.block_function(tiles, left, right, program.k, results, extra),
    ]


def _launch(program: ConvProgram, options: ConvOptions) -> list[str]:
    tiled = options.structure == "tiles"
    step_m = "kRowBlock" if tiled else str(min(program.m, max(1, options.filters)))
    m_loop = f"for (long long m0 = 0; m0 < kM; m0 += {step_m})"
    m_end = f"m0 + {step_m} < kM ? m0 + {step_m} : kM"
    share = [f"#pragma omp parallel {omp_for(options.schedule)} collapse(3)"] if options.parallel else []
    if program.pool is not None and options.fused:
        rows = min(options.pool_rows, program.pool.size[0])
        return [
            *share,
            f"for (long long b = 0; b < {program.batch}; ++b)",
            f"  {m_loop}",
            f"    for (long long r0 = 0; r0 < kPoolHigh; r0 += {rows}) {{",
            *indent(indent(indent(cpp_text.fused_block(program, rows, step_m, m_end, tiled)))),
            "    }",
        ]
    step_n = "kColBlock" if tiled else "kOutWide"
    arguments = f"t, b, m0, {m_end}, n0, n0 + {step_n} < kN ? n0 + {step_n} : kN"
    if program.pool is not None:
        arguments += ", results + (b * kM + m0) * kN + n0, kN"
    lines = ["float* results = static_cast<float*>(workspace);"] if program.pool is not None else []
    lines += [
        *share,
        f"for (long long b = 0; b < {program.batch}; ++b)",
        f"  {m_loop}",
        f"    for (long long n0 = 0; n0 < kN; n0 += {step_n}) block({arguments});",
    ]
    if program.pool is not None:
        lines += [
            *([f"#pragma omp parallel {omp_for(options.schedule)}"] if options.parallel else []),
            f"for (long long plane = 0; plane < {program.batch} * kM; ++plane)",
            "  pool(t, plane, 0, kPoolHigh, results + plane * kN, 0);",
        ]
    return lines
