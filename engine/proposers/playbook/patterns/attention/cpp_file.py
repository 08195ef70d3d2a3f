"""C++ kernel files for attention: one query at a time, or blocks of queries and keys with an online softmax."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.cpp import Cpp
from engine.proposers.playbook.codegen.cpp_math import math_functions
from engine.proposers.playbook.codegen.cpp_options import Arithmetic
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.text import banner, indent, omp_for
from engine.proposers.playbook.ir.sizes import factor, text
from engine.proposers.playbook.patterns.attention.program import AttentionProgram
from engine.proposers.playbook.patterns.gemm.tiles import cpp_tiles
from engine.proposers.playbook.patterns.gemm.tiles.cpp_finish import (
    finish,
    ops_of,
    pointers,
    preamble,
    tensors_struct,
)
from engine.proposers.playbook.patterns.gemm.tiles.cpp_tiles import Left, Tiles

_USUAL_SCALE = [
    "constexpr double root(double x) {  // Newton's method",
    "  double r = x;",
    "  for (int k = 0; k < 64; ++k) r = 0.5 * (r + x / r);",
    "  return r;",
    "}",
    "constexpr float kScale = float(1.0 / root(kWidth));",
]


class AttentionOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The choices for an attention kernel.

    Attributes:
        structure: The structure ``rows`` keeps all of a query's scores in memory. ``blocks`` iterates over blocks of
            keys with a running maximum. A block has ``row_tiles`` * ``rows`` queries and ``key_tiles`` * ``vecs`` *
            ``lanes`` keys.
    """

    structure: Literal["rows", "blocks"] = "rows"
    parallel: bool = False
    schedule: Literal["static", "dynamic"] = "static"
    rows: int = 6
    vecs: int = 2
    lanes: int = 16
    row_tiles: int = 4
    key_tiles: int = 2
    unroll: int = 1
    exp_degree: int = 6
    math: Arithmetic = "libm"


def attention_kernel(program: AttentionProgram, options: AttentionOptions, spec: ProblemSpec) -> str:
    """Return the source of a C++ attention kernel."""
    blocks = options.structure == "blocks"
    names = pointers([program.chain], program.q.tensor, program.k.tensor, program.v.tensor)
    outputs = [tensor.name for tensor in spec.outputs]
    lanes = options.lanes if blocks else 1
    title = (
        f"{'Causal attention' if program.causal else 'Attention'} for {spec.name}, tuned for a batch of "
        f"{program.batch}, with {program.rows} queries and {program.keys} keys of width {program.width}."
    )
    lines = [
        *banner(title, ops_of(program.chain)),
        "namespace {",
        "",
        *program.size_assertions,
        "",
    ]
    if blocks:
        lines += _helpers(program, options)
    else:
        lines += preamble([program.chain], 1, options.math)
    lines += [*tensors_struct(names, outputs), ""]
    lines += [
        f"constexpr long long kQueries = {text(program.rows)}, kKeys = {text(program.keys)};",
        f"constexpr long long kWidth = {text(program.width)}, kValues = {text(program.value_width)};"
        "  // elements per query; elements per value",
        *(_USUAL_SCALE if program.usual_scale else [f"constexpr float kScale = {Cpp().number(program.scale)};"]),
    ]
    lines += [*finish(program.chain, program.value_width, lanes), ""]
    lines += _blocks(program, options) if blocks else _rows(program)
    lines += ["", "}  // namespace", "", f"{launch_signature(spec, 'cpp', set(names))} {{"]
    step = "kQueryBlock" if blocks else "1"
    loop = [
        f"for (long long b = 0; b < {factor(program.batch)}; ++b)",
        f"  for (long long i0 = 0; i0 < kQueries; i0 += {step}) {'block' if blocks else 'query'}(t, b, i0);",
    ]
    share = [f"#pragma omp parallel {omp_for(options.schedule)} collapse(2)"] if options.parallel else []
    lines += indent([f"const Tensors t{{{', '.join(names)}}};", *share, *loop, "return 0;"])
    return "\n".join([*lines, "}"]) + "\n"


def _helpers(program: AttentionProgram, options: AttentionOptions) -> list[str]:
    """Return the types and helpers from ``preamble``, and an exponential function for the softmax."""
    ops = ops_of(program.chain)
    polynomials = options.math == "polynomial"
    pieces = preamble([program.chain], options.lanes, options.math)[:-1]
    helpers = math_functions({*ops, "exp"}, wide=True, polynomials=polynomials, degree=options.exp_degree)
    return [*pieces, helpers]


def _rows(program: AttentionProgram) -> list[str]:
    last = "i + 1 < kKeys ? i + 1 : kKeys" if program.causal else "kKeys"
    body = [
        f"const float* q = {program.q.pointer};",
        f"const float* k = {program.k.pointer};",
        f"const float* v = {program.v.pointer};",
        "static thread_local float scores[kKeys];",
        f"const long long keys = {last};",
        "float highest = -INFINITY;",
        "for (long long j = 0; j < keys; ++j) {",
        "  float sum = 0.0f;",
        "  for (long long d = 0; d < kWidth; ++d)",
        f"    sum += q[{program.q.at('i', 'd')}] * k[{program.k.at('j', 'd')}];",
        "  scores[j] = kScale * sum;",
        "  if (scores[j] > highest) highest = scores[j];",
        "}",
        "float total = 0.0f;",
        "for (long long j = 0; j < keys; ++j) total += scores[j] = std::exp(scores[j] - highest);",
        "float sums[kValues] = {};",
        "for (long long j = 0; j < keys; ++j)",
        f"  for (long long d = 0; d < kValues; ++d) sums[d] += scores[j] * v[{program.v.at('j', 'd')}];",
        "for (long long d = 0; d < kValues; ++d) finish(t, (b * kQueries + i) * kValues + d, d, sums[d] / total);",
    ]
    return ["// Computes query i: all its scores, their softmax, and the weighted sum of the values.",
            "inline void query(const Tensors& t, long long b, long long i) {", *indent(body), "}"]  # fmt: skip


def _blocks(program: AttentionProgram, options: AttentionOptions) -> list[str]:
    tiles = Tiles(options.rows, options.vecs, options.lanes, 1, 1, 1, False, False, options.unroll)
    columns = options.vecs * options.lanes
    key_tiles = min(options.key_tiles, -(-program.keys // columns))
    end = "i0 + kQueryBlock < kKeys ? i0 + kQueryBlock : kKeys" if program.causal else "kKeys"
    inside = "j >= keys || j > i" if program.causal else "j >= keys"
    block = [
        f"const float* q = {program.q.pointer};",
        f"const float* k = {program.k.pointer};",
        f"const float* v = {program.v.pointer};",
        "alignas(64) static thread_local float queries[kQueryBlock * kWidth];  // scaled",
        "alignas(64) static thread_local float keys_t[kKeyTiles * kWidth * kCols];  // transposed: width by keys",
        "alignas(64) static thread_local float values[kValueTiles * kKeyBlock * kCols];",
        "alignas(64) static thread_local float results[kQueryBlock * kValueTiles * kCols];",
        "alignas(64) float scores[kRows * kKeyBlock];",
        "float highest[kQueryBlock], total[kQueryBlock];",
        "for (long long r = 0; r < kQueryBlock; ++r) {",
        "  highest[r] = -INFINITY;",
        "  total[r] = 0.0f;",
        "  // Past the end, repeat the last query.",
        "  [[maybe_unused]] const long long i = i0 + r < kQueries ? i0 + r : kQueries - 1;",
        f"  for (long long d = 0; d < kWidth; ++d) queries[r * kWidth + d] = kScale * q[{program.q.at('i', 'd')}];",
        "}",
        "for (long long e = 0; e < kQueryBlock * kValueTiles * kCols; ++e) results[e] = 0.0f;",
        f"const long long keys = {end};",
        "for (long long j0 = 0; j0 < keys; j0 += kKeyBlock) {",
        "  for (long long c = 0; c < kKeyBlock; ++c) {",
        "    [[maybe_unused]] const long long j = j0 + c < kKeys ? j0 + c : kKeys - 1;",
        "    float* key = keys_t + c / kCols * (kWidth * kCols) + c % kCols;",
        f"    for (long long d = 0; d < kWidth; ++d) key[d * kCols] = k[{program.k.at('j', 'd')}];",
        "    for (long long d = 0; d < kValueTiles * kCols; ++d)",
        "      values[(d / kCols * kKeyBlock + c) * kCols + d % kCols] = "
        f"d < kValues ? v[{program.v.at('j', 'd')}] : 0.0f;",
        "  }",
        "  for (long long r0 = 0; r0 < kQueryBlock && i0 + r0 < kQueries; r0 += kRows) {",
        "    const float* rows[kRows];",
        "    for (int r = 0; r < kRows; ++r) rows[r] = queries + (r0 + r) * kWidth;",
        "    for (int p = 0; p < kKeyTiles; ++p) {",
        "      float* tile_scores = scores + p * (kRows * kCols);",
        "      tile(rows, keys_t + p * (kWidth * kCols), kCols, kWidth, tile_scores, true);",
        "    }",
        "    for (int r = 0; r < kRows; ++r)",
        "      soften(scores + r * kCols, i0 + r0 + r, j0, keys, highest[r0 + r], total[r0 + r],",
        "             results + r0 * (kValueTiles * kCols) + r * kCols);",
        "    for (int p = 0; p < kKeyTiles; ++p) {",
        "      for (int r = 0; r < kRows; ++r) rows[r] = scores + (p * kRows + r) * kCols;",
        "      for (int c = 0; c < kValueTiles; ++c)",
        "        tile(rows, values + (c * kKeyBlock + p * kCols) * kCols, kCols, kCols,",
        "             results + r0 * (kValueTiles * kCols) + c * (kRows * kCols), false);",
        "    }",
        "  }",
        "}",
        "for (long long r = 0; r < kQueryBlock && i0 + r < kQueries; ++r) {",
        "  const float inverse = 1.0f / total[r];",
        "  for (long long d = 0; d < kValues; d += kCols) {",
        "    const float* row = results + (r / kRows * kValueTiles + d / kCols) * (kRows * kCols) + r % kRows * kCols;",
        "    const long long count = kValues - d < kCols ? kValues - d : kCols;",
        "    const long long i = (b * kQueries + i0 + r) * kValues + d;",
        "    long long c = 0;",
        "    for (; c + kLanes <= count; c += kLanes)",
        "      finish(Wide{}, t, i + c, d + c, load(Wide{}, row + c) * inverse);",
        "    for (; c < count; ++c) finish(One{}, t, i + c, d + c, row[c] * inverse);",
        "  }",
        "}",
    ]
    soften = [
        "float top = before;",
        "for (int p = 0; p < kKeyTiles; ++p) {",
        "  float* row = scores + p * (kRows * kCols);",
        "  for (int c = 0; c < kCols; ++c) {",
        "    const long long j = j0 + p * kCols + c;",
        f"    if ({inside}) row[c] = -INFINITY;",
        "    if (row[c] > top) top = row[c];",
        "  }",
        "}",
        "const float shrink = before == -INFINITY ? 0.0f : exp_of(before - top);",
        "vec sum = {};",
        "for (int p = 0; p < kKeyTiles; ++p) {",
        "  float* row = scores + p * (kRows * kCols);",
        "  for (int c = 0; c < kCols; c += kLanes) {",
        "    const vec score = load(Wide{}, row + c);",
        "    const vec weight = score == -INFINITY ? vec{} : exp_of(score - top);",
        "    store(row + c, weight);",
        "    sum += weight;",
        "  }",
        "}",
        "float part = 0.0f;",
        "for (int lane = 0; lane < kLanes; ++lane) part += sum[lane];",
        "total = total * shrink + part;",
        "before = top;",
        "if (shrink == 1.0f) return;",
        "for (int c = 0; c < kValueTiles; ++c)",
        "  for (int d = 0; d < kCols; d += kLanes) {",
        "    float* at = results + c * (kRows * kCols) + d;",
        "    store(at, load(Wide{}, at) * shrink);",
        "  }",
    ]
    i = "i" if program.causal else "/*i*/"
    return [
        f"constexpr int kRows = {options.rows}, kVecs = {options.vecs}, kCols = kVecs * kLanes;  // a register tile",
        f"constexpr long long kQueryBlock = {min(options.row_tiles, -(-program.rows // options.rows))} * kRows;",
        f"constexpr int kKeyTiles = {key_tiles}, kValueTiles = (kValues + kCols - 1) / kCols;",
        "constexpr long long kKeyBlock = kKeyTiles * kCols;",
        *cpp_tiles.tile_function(tiles, Left("", 0, 1), True),
        "// Turns a row of a block of scores into weights relative to the highest score so far, and rescales the sums.",
        f"inline void soften(float* scores, long long {i}, long long j0, long long keys, float& before, float& total,",
        "                   float* results) {",
        *indent(soften),
        "}",
        "// Computes a block of queries from i0 on, with a running maximum and running sums over blocks of keys.",
        "void block(const Tensors& t, long long b, long long i0) {",
        *indent(block),
        "}",
    ]
