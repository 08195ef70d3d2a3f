"""Matrix products in C++ with register tiles over packed panels, written with GCC's vector extensions.

Matmuls and convolutions share this code. They differ in how they pack the right operand's panels (``Right``) and in how
they use finished blocks.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from engine.proposers.playbook.codegen.cpp_options import Arithmetic
from engine.proposers.playbook.codegen.size_assertions import size_assertion
from engine.proposers.playbook.codegen.text import function, indent
from engine.proposers.playbook.ir.sizes import factor, stride, text

LONGEST_SUM = 8192
"""Maximum number of terms of a sum in a single pass, at sizes other than the searched size. Longer sums would need
larger panels.
"""
LONGEST_PASS = 2048
"""Maximum number of steps of k per pass. Longer sums take several passes, so that panels stay small."""


class Tiles(Struct, frozen=True):
    """A tile of ``rows`` x (``vecs`` * ``lanes``) accumulators that stay in registers.

    Attributes:
        depth: Steps of k per pass over a block; 0 means all steps.
        row_tiles: Rows of tiles in the block that one task computes.
        col_tiles: Columns of tiles in the block.
        pack_a: Whether to copy the block's part of the left operand into contiguous panels first.
        pack_b: Whether to copy the block's part of the right operand into panels.
        unroll: The unroll factor of the loop over k.
    """

    rows: int
    vecs: int
    lanes: int
    depth: int
    row_tiles: int
    col_tiles: int
    pack_a: bool
    pack_b: bool
    unroll: int
    prefetch: bool = False


class TileOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The choices of every C++ template with register tiles. The choices up to ``prefetch`` define :class:`Tiles`."""

    rows: int = 6
    vecs: int = 2
    lanes: int = 16
    depth: int = 0
    row_tiles: int = 8
    col_tiles: int = 4
    pack_a: bool = False
    unroll: int = 1
    prefetch: bool = False
    parallel: bool = False
    schedule: Literal["static", "dynamic"] = "static"
    math: Arithmetic = "libm"


def fitting_tiles(options: TileOptions, m: int, n: int, k: int, *, pack_b: bool) -> Tiles:
    """Return the tiles that ``options`` requests, clipped to ``m`` x ``n`` outputs of ``k`` steps each."""
    depth = options.depth if 0 < options.depth < k else 0
    if depth == 0 and k > LONGEST_PASS:
        depth = LONGEST_PASS // 4
    return Tiles(
        rows=options.rows,
        vecs=options.vecs,
        lanes=options.lanes,
        depth=depth,
        row_tiles=min(options.row_tiles, -(-m // options.rows)),
        col_tiles=min(options.col_tiles, -(-n // (options.vecs * options.lanes))),
        pack_a=options.pack_a,
        pack_b=pack_b,
        unroll=options.unroll,
        prefetch=options.prefetch,
    )


class Left(Struct, frozen=True):
    """The left operand. ``pointer``: address of the first element of matrix number ``b``. Strides are in elements."""

    pointer: str
    row_stride: int
    col_stride: int


class Right(Struct, frozen=True):
    """How a kernel reads columns of the right operand.

    Attributes:
        direct: Pointer to the first element of matrix number ``b`` if the rows are contiguous, else "".
        step: Row stride of the right operand in elements, used only if the rows are contiguous.
        pack: Statements that fill ``panel`` (``depth`` x ``kCols``), starting at row ``k0`` and column ``n``. Columns
            from ``n1`` on are 0.
    """

    direct: str
    step: int
    pack: tuple[str, ...]


def constants(tiles: Tiles, m: int, n: int, k: int) -> list[str]:
    """Return constants for the sizes of the product and of its tiles."""
    depth = f"kK < {tiles.depth} ? kK : {tiles.depth}" if tiles.depth else "kK"
    longest = [] if tiles.depth else [size_assertion(f"kK <= {LONGEST_SUM}", f"sums of at most {LONGEST_SUM} terms")]
    return [
        f"constexpr long long kM = {text(m)}, kN = {text(n)}, kK = {text(k)};",
        *longest,
        f"constexpr int kRows = {tiles.rows}, kVecs = {tiles.vecs}, kCols = kVecs * kLanes;  // a tile in registers",
        f"constexpr long long kDepth = {depth};  // k-steps per pass over a block",
        f"constexpr long long kRowBlock = {tiles.row_tiles} * kRows, kColBlock = {tiles.col_tiles} * kCols;",
    ]


def tile_function(tiles: Tiles, left: Left, several: bool) -> list[str]:
    """Return the function ``tile``, which computes a tile's sums over one pass in ``sums`` (``kRows`` x ``kCols``)."""
    if tiles.pack_a:
        parameter, read = "const float* a", "a[k * kRows + r]"
    else:
        step = f"k * {factor(left.col_stride)}" if left.col_stride != 1 else "k"
        parameter, read = "const float* const (&a)[kRows]", f"a[r][{step}]"
    begin = ["vec acc[kRows][kVecs] = {};"]
    if several:
        begin = [
            "vec acc[kRows][kVecs];",
            "#pragma GCC unroll 32",
            "for (int r = 0; r < kRows; ++r) {",
            "#pragma GCC unroll 8",
            "  for (int v = 0; v < kVecs; ++v)",
            "    acc[r][v] = first ? vec{} : load(Wide{}, sums + r * kCols + v * kLanes);",
            "}",
        ]
    ahead = ["__builtin_prefetch(row + 4 * step);"] if tiles.prefetch else []
    return [
        "// Computes one tile: keeps kRows x kCols sums over depth steps of k in registers, then writes them to sums.",
        f"inline void tile({parameter}, const float* b, long long step, long long depth, float* sums"
        f"{', bool first' if several else ''}) {{",
        *indent(begin),
        f"#pragma GCC unroll {tiles.unroll}",
        "  for (long long k = 0; k < depth; ++k) {",
        "    const float* row = b + k * step;",
        *indent(indent(ahead)),
        "    vec right[kVecs];",
        "#pragma GCC unroll 8",
        "    for (int v = 0; v < kVecs; ++v) right[v] = load(Wide{}, row + v * kLanes);",
        "#pragma GCC unroll 32",
        "    for (int r = 0; r < kRows; ++r) {",
        f"      const float value = {read};",
        "#pragma GCC unroll 8",
        "      for (int v = 0; v < kVecs; ++v) acc[r][v] += value * right[v];",
        "    }",
        "  }",
        "#pragma GCC unroll 32",
        "  for (int r = 0; r < kRows; ++r) {",
        "#pragma GCC unroll 8",
        "    for (int v = 0; v < kVecs; ++v) store(sums + r * kCols + v * kLanes, acc[r][v]);",
        "  }",
        "}",
    ]


def pack_functions(tiles: Tiles, left: Left, right: Right) -> list[str]:
    """Return the functions ``pack_panel`` for the right operand and, if the left operand is packed, ``pack_rows``."""
    whole = ("long long", "long long", "long long", "long long", "long long")
    lines = function(
        "Columns [n, n + kCols) of rows [k0, k0 + depth) of the right operand, with zeros from column n1 on.",
        "void",
        "pack_panel",
        [("const Tensors&", "t"), *zip(whole, ("b", "k0", "depth", "n", "n1"), strict=True), ("float*", "panel")],
        list(right.pack),
    )
    if tiles.pack_a:
        lines += [
            "// Rows [m, m + kRows) of columns [k0, k0 + depth) of the left operand, with zeros from row m1 on.",
            "inline void pack_rows(const float* a, long long k0, long long depth, long long m, long long m1, "
            "float* panel) {",
            "  for (int r = 0; r < kRows; ++r) {",
            f"    const float* row = a + (m + r) * {stride(left.row_stride)} + k0 * {stride(left.col_stride)};",
            "    for (long long k = 0; k < depth; ++k)",
            f"      panel[k * kRows + r] = m + r < m1 ? row[k * {stride(left.col_stride)}] : 0.0f;",
            "  }",
            "}",
        ]
    return lines


def block_function(tiles: Tiles, left: Left, right: Right, k: int, results: list[str], extra: str = "") -> list[str]:
    """Return the function ``block``, which computes at most one block of product number ``b``: rows [m0, m1) by
    columns [n0, n1).

    Args:
        results: Statements for row ``r`` of a tile. The statements can use ``m``, ``n``, ``row`` (the row's sums) and
            ``count`` (columns).
        extra: Additional parameters of ``block``.
    """
    several = 0 < tiles.depth < k
    direct = bool(right.direct) and not tiles.pack_b
    buffers = []
    if not direct:
        buffers.append("alignas(64) static thread_local float panels[kColBlock * kDepth];")
    else:
        buffers.append("alignas(64) static thread_local float edge[kCols * kDepth];")
    if tiles.pack_a:
        buffers.append("alignas(64) static thread_local float rows_of_a[kRowBlock * kDepth];")
    buffers.append(
        "alignas(64) static thread_local float kept[kRowBlock * kColBlock];"
        if several
        else "alignas(64) float sums[kRows * kCols];"
    )
    depth = "const long long depth = kK - k0 < kDepth ? kK - k0 : kDepth;" if several else (
        "constexpr long long k0 = 0, depth = kK;"
    )  # fmt: skip
    body = [depth]
    if not direct:
        body += [
            "for (long long n = n0; n < n1; n += kCols)",
            "  pack_panel(t, b, k0, depth, n, n1, panels + (n - n0) * kDepth);",
        ]
    if tiles.pack_a:
        body += [
            "for (long long m = m0; m < m1; m += kRows)",
            "  pack_rows(a, k0, depth, m, m1, rows_of_a + (m - m0) * kDepth);",
        ]
    inner = []
    if direct:
        inner += [
            "const bool whole = n + kCols <= n1;",
            "if (!whole) pack_panel(t, b, k0, depth, n, n1, edge);",
            f"const float* from = whole ? {right.direct} + k0 * {stride(right.step)} + n : edge;",
            f"const long long step = whole ? {stride(right.step)} : kCols;",
        ]
    else:
        inner += ["const float* from = panels + (n - n0) * kDepth;", "constexpr long long step = kCols;"]
    tile = []
    if several:
        tile.append("float* sums = kept + (m - m0) * kColBlock + (n - n0) * kRows;")
    if tiles.pack_a:
        argument = "rows_of_a + (m - m0) * kDepth"
    else:
        tile += [
            "const float* rows_at[kRows];  // past the end, repeats the last row and ignores the sums",
            "for (int r = 0; r < kRows; ++r)",
            f"  rows_at[r] = a + (m + r < m1 ? m + r : m1 - 1) * {stride(left.row_stride)} "
            f"+ k0 * {stride(left.col_stride)};",
        ]
        argument = "rows_at"
    tile.append(f"tile({argument}, from, step, depth, sums{', k0 == 0' if several else ''});")
    if several:
        tile.append("if (k0 + depth < kK) continue;")
    tile += [
        "const long long count = n1 - n < kCols ? n1 - n : kCols;",
        "for (int r = 0; r < kRows && m + r < m1; ++r) {",
        "  const float* row = sums + r * kCols;",
        *indent(results),
        "}",
    ]
    inner += ["for (long long m = m0; m < m1; m += kRows) {", *indent(tile), "}"]
    body += ["for (long long n = n0; n < n1; n += kCols) {", *indent(inner), "}"]
    loop = ["for (long long k0 = 0; k0 < kK; k0 += kDepth) {", *indent(body), "}"] if several else body
    return [
        "// Rows [m0, m1) by columns [n0, n1) of product b.",
        f"void block(const Tensors& t, long long b, long long m0, long long m1, long long n0, long long n1{extra}) {{",
        *indent([*buffers, f"const float* a = {left.pointer};", *loop]),
        "}",
    ]


def finish_row(index: str, function: str = "finish", more: str = "") -> list[str]:
    """Return statements that call ``function`` on a row of a tile: first on vectors, then on single elements. ``index``
    is a C expression for the index of the row's first output.
    """
    return [
        f"const long long i = {index};",
        "long long c = 0;",
        "for (; c + kLanes <= count; c += kLanes)",
        f"  {function}(Wide{{}}, t, i + c, n + c, load(Wide{{}}, row + c){more});",
        f"for (; c < count; ++c) {function}(One{{}}, t, i + c, n + c, row[c]{more});",
    ]
