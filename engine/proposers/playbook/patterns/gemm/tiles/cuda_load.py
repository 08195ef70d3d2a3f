"""CUDA C++ that loads an operand's tiles into shared memory, either through registers or asynchronously."""

from __future__ import annotations

from msgspec import Struct

from engine.proposers.playbook.codegen.text import fill
from engine.proposers.playbook.ir.sizes import stride
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import Operand, Plan

_LOAD_TYPES = {2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}


class Source(Struct, frozen=True):
    """An operand in global memory.

    Attributes:
        base: Pointer to the matrix of batch ``b``.
        locate: Lines of C that define ``bool inside`` and ``const Element* from``, given ``base``, ``k`` and ``r``.
            Line ``r`` is a row of the left operand or a column of the right operand. Outside the matrix, ``from`` must
            still be a valid pointer.
    """

    base: str
    operand: Operand
    locate: tuple[str, ...]


def strided(base: str, lines: str, operand: Operand, line_stride: int, k_stride: int) -> Source:
    """Return an operand whose element (r, k) is at ``r * line_stride + k * k_stride``. ``lines`` is the C name of the
    number of lines.
    """
    terms = []
    for index, step in (("r", line_stride), ("k", k_stride)):
        if step:
            terms.append(f"(long long){index}" if step == 1 else f"{index} * {stride(step)}")
    return Source(
        base,
        operand,
        (
            f"const bool inside = r < {lines} && k < K;",
            f"const Element* from = inside ? base + ({' + '.join(terms) or '0'}) : base;",
        ),
    )


_COMMON = """\
// Chunk q of the $side tile: the line and the k at which it begins, and its place in shared memory.
__device__ __forceinline__ void chunk_of_$side(int q, int& r, int& k) {
$where}
__device__ __forceinline__ int place_of_$side(int r, int k) { return $place; }
"""
_THROUGH_REGISTERS = """\
$common
// Loads this thread's part of a tile that begins at line r0 and at k0, with zeros outside.
__device__ __forceinline__ void fetch_$side(const Element* base, int r0, int k0, Chunk$Side (&held)[chunks_$side]) {
#pragma unroll
    for (int u = 0; u < chunks_$side; ++u) {
        const int q = threadIdx.x + u * threads;
        held[u] = Chunk$Side{};
        if (q < all_$side) {
            int r, k;
            chunk_of_$side(q, r, k);
            r += r0;
            k += k0;
$locate
            if (inside) held[u] = *reinterpret_cast<const Chunk$Side*>(from);
        }
    }
}
__device__ __forceinline__ void store_$side(Element* tile, const Chunk$Side (&held)[chunks_$side]) {
#pragma unroll
    for (int u = 0; u < chunks_$side; ++u) {
        const int q = threadIdx.x + u * threads;
        if (q < all_$side) {
            int r, k;
            chunk_of_$side(q, r, k);
$store
        }
    }
}
"""
_ASYNC = """\
$common
// Copies a tile that begins at line r0 and at k0, without registers and with zeros outside.
__device__ __forceinline__ void copy_$side(Element* tile, const Element* base, int r0, int k0) {
#pragma unroll
    for (int u = 0; u < chunks_$side; ++u) {
        const int q = threadIdx.x + u * threads;
        if (q < all_$side) {
            int r, k;
            chunk_of_$side(q, r, k);
            Element* to = tile + place_of_$side(r, k);
            r += r0;
            k += k0;
$locate
            __pipeline_memcpy_async(to, from, $bytes, inside ? 0 : $bytes);
        }
    }
}
"""


def loaders(plan: Plan, side: str, source: Source) -> str:
    """Return functions that load tiles of ``side`` (``a`` or ``b``) into shared memory."""
    left = side == "a"
    lines = plan.bm if left else plan.bn
    width = plan.widths[0 if left else 1]
    pitch = plan.a_pitch if left else plan.b_pitch
    along_k = plan.a_along_k if left else plan.b_along_k
    memory_k = source.operand.along == "k"
    if memory_k:
        per = plan.bk // width
        where = f"    r = q / {per};\n    k = q % {per} * {width};\n"
    else:
        per = lines // width
        where = f"    k = q / {per};\n    r = q % {per} * {width};\n"
    place = f"r * {pitch} + k" if along_k else f"k * {pitch} + r"
    total = lines * plan.bk // width
    constants = (
        f"constexpr int all_{side} = {total}, chunks_{side} = (all_{side} + threads - 1) / threads;"
        f"  // chunks of {width} element{'s' if width > 1 else ''}\n"
    )
    common = constants + fill(_COMMON, side=side, where=where, place=place)
    locate = "\n".join(f"            {line}" for line in source.locate)
    if plan.copy == "async":
        return fill(_ASYNC, common=common, side=side, locate=locate, bytes=width * plan.element_bytes)
    chunk = _LOAD_TYPES[width * plan.element_bytes] if width > 1 else "Element"
    if width == 1:
        store = f"            tile[place_of_{side}(r, k)] = held[u];"
    elif memory_k == along_k:
        store = f"            *reinterpret_cast<Chunk{side.upper()}*>(tile + place_of_{side}(r, k)) = held[u];"
    else:
        step = "r, k + w" if memory_k else "r + w, k"
        store = (
            "            Element parts[sizeof(held[u]) / sizeof(Element)];\n"
            "            memcpy(parts, &held[u], sizeof(held[u]));\n"
            "#pragma unroll\n"
            f"            for (int w = 0; w < {width}; ++w) tile[place_of_{side}({step})] = parts[w];"
        )
    using = f"using Chunk{side.upper()} = {chunk};\n"
    text = fill(_THROUGH_REGISTERS, common=common, side=side, Side=side.upper(), locate=locate, store=store)
    return using + text
