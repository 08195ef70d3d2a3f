"""Matrix products in CUDA C++, with a thread per output, with tiles in shared memory and accumulators in registers,
or with tensor cores.
"""

from __future__ import annotations

from msgspec import Struct

from engine.problem.c_header import ctype
from engine.proposers.playbook.codegen.text import fill
from engine.proposers.playbook.ir.sizes import factor, text
from engine.proposers.playbook.patterns.gemm.tiles.cuda_load import Source, loaders
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import Plan


class Product(Struct, frozen=True):
    """The computation of a matrix-product kernel: the sizes, the operands, and what the kernel does with the sums.

    ``deliver``: lines of C that use ``sum`` at ``m``, ``n`` of batch ``b``. Without ``pooled``, ``m`` and ``n`` are
    inside the matrix. ``tiles_n``: the number of tiles in a row, or 0 to compute it from ``n``. ``prepare``: lines at
    the kernel's start. ``column_inside``: the C condition for a column inside the matrix. ``pooled``: lines, if any,
    that run after all sums are in ``results`` (bm x bn floats of shared memory).
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    a: Source
    b: Source
    deliver: tuple[str, ...]
    tiles_n: int = 0
    prepare: tuple[str, ...] = ()
    column_inside: str = "n < N"
    pooled: tuple[str, ...] = ()


def includes(plan: Plan) -> str:
    """Return the headers that a kernel needs in addition to the problem's header."""
    names = ["cuda_runtime.h", "cstring"]
    names += ["cuda_pipeline.h"] if plan.copy == "async" and plan.structure != "naive" else []
    names += ["mma.h"] if plan.structure == "tensor" else []
    return "".join(f"#include <{name}>\n" for name in names)


def constants(product: Product, plan: Plan) -> str:
    """Return constants for the sizes of the product, the tiles and the block."""
    across = product.tiles_n or "(N + BN - 1) / BN"
    depth = "" if plan.structure == "naive" else f", BK = {plan.bk}"
    return (
        f"using Element = {ctype(product.dtype, 'cu')};\n"
        f"constexpr int M = {text(product.m)}, N = {text(product.n)}, K = {text(product.k)};\n"
        f"constexpr int BM = {plan.bm}, BN = {plan.bn}{depth}, threads = {plan.threads};\n"
        f"constexpr int tiles_m = (M + BM - 1) / BM, tiles_n = {across};\n"
        f"constexpr unsigned blocks = {factor(product.batch)} * tiles_m * tiles_n;\n"
    )


_WHERE = """\
    // The tile of the matrix that this block computes$grouped.
    const int tile = int(blockIdx.x % (tiles_m * tiles_n));
    const long long b = blockIdx.x / (tiles_m * tiles_n);
$order
    const int m0 = tile_m * BM, n0 = tile_n * BN;
"""
_ROWS_FIRST = """\
    const int tile_m = tile / tiles_n, tile_n = tile % tiles_n;"""
_GROUPED = """\
    constexpr int group = $group;
    const int top = tile / (group * tiles_n) * group, rows = min(group, tiles_m - top);
    const int tile_m = top + tile % (group * tiles_n) % rows, tile_n = tile % (group * tiles_n) / rows;"""


def where(plan: Plan) -> str:
    """Return lines that find the block's tile: ``b``, ``m0``, ``n0``."""
    if plan.group == 1:
        return fill(_WHERE, grouped="", order=_ROWS_FIRST)
    order = fill(_GROUPED, group=plan.group)
    return fill(_WHERE, grouped=". Neighboring blocks reuse operands in L2", order=order)


def _lines(lines: tuple[str, ...], by: int) -> str:
    return "".join(line + "\n" if line.startswith("#") else f"{' ' * by}{line}\n" for line in lines)


_NAIVE = """\
__global__ void __launch_bounds__(threads) product(Tensors t) {
$where$prepare
    constexpr int rows = $tm;  // of a thread
    const int first = m0 + threadIdx.x / BN * rows, n = n0 + threadIdx.x % BN;
    if (first >= M || !($column_inside)) return;
    float sums[rows] = {};
    for (int k = 0; k < K; ++k) {
        const float right = element_b(t, b, n, k);
#pragma unroll
        for (int i = 0; i < rows; ++i) sums[i] += element_a(t, b, first + i, k) * right;
    }
#pragma unroll
    for (int i = 0; i < rows; ++i) {
        const int m = first + i;
        const float sum = sums[i];
        if (m < M) {
$deliver        }
    }
}
"""
_ELEMENT = """\
// Element k of line r of the $side operand.
__device__ __forceinline__ float element_$side(const Tensors& t, long long b, int r, int k) {
    const Element* base = $base;
$locate    return inside ? to_float(*from) : 0.0f;
}
"""


def naive(product: Product, plan: Plan) -> str:
    """Return the kernel that reads operands from global memory. Each thread computes one or a few outputs of a
    column.
    """
    text = ""
    for side, source in (("a", product.a), ("b", product.b)):
        text += fill(_ELEMENT, side=side, base=source.base, locate=_lines(source.locate, 4))
    return text + fill(
        _NAIVE,
        where=where(plan),
        prepare=_lines(product.prepare, 4),
        column_inside=product.column_inside,
        tm=plan.tm,
        deliver=_lines(product.deliver, 12),
    )


_MAIN = {
    "sync": """\
    for (int k0 = 0; k0 < K; k0 += BK) {
        ChunkA held_a[chunks_a];
        ChunkB held_b[chunks_b];
        fetch_a(base_a, m0, k0, held_a);
        fetch_b(base_b, n0, k0, held_b);
        store_a(tile_a, held_a);
        store_b(tile_b, held_b);
        __syncthreads();
        sums.add(tile_a, tile_b);
        __syncthreads();
    }
""",
    "registers": """\
    // Two tiles in shared memory: the block loads the next tile through registers while it uses this tile.
    ChunkA held_a[chunks_a];
    ChunkB held_b[chunks_b];
    fetch_a(base_a, m0, 0, held_a);
    fetch_b(base_b, n0, 0, held_b);
    store_a(tile_a, held_a);
    store_b(tile_b, held_b);
    __syncthreads();
    for (int k0 = 0, stage = 0; k0 < K; k0 += BK, stage ^= 1) {
        const bool more = k0 + BK < K;
        if (more) {
            fetch_a(base_a, m0, k0 + BK, held_a);
            fetch_b(base_b, n0, k0 + BK, held_b);
        }
        sums.add(tile_a + stage * stride_a, tile_b + stage * stride_b);
        if (more) {
            store_a(tile_a + (stage ^ 1) * stride_a, held_a);
            store_b(tile_b + (stage ^ 1) * stride_b, held_b);
        }
        __syncthreads();
    }
""",
    "async": """\
    // A ring of tiles in shared memory, filled by asynchronous copies that stay ahead of the arithmetic.
    constexpr int steps = (K + BK - 1) / BK;
#pragma unroll
    for (int s = 0; s < stages - 1; ++s) {
        if (s < steps) {
            copy_a(tile_a + s * stride_a, base_a, m0, s * BK);
            copy_b(tile_b + s * stride_b, base_b, n0, s * BK);
        }
        __pipeline_commit();
    }
    for (int step = 0; step < steps; ++step) {
        __pipeline_wait_prior(stages - 2);
        __syncthreads();
        const int next = step + stages - 1;
        if (next < steps) {
            copy_a(tile_a + next % stages * stride_a, base_a, m0, next * BK);
            copy_b(tile_b + next % stages * stride_b, base_b, n0, next * BK);
        }
        __pipeline_commit();
        sums.add(tile_a + step % stages * stride_a, tile_b + step % stages * stride_b);
    }
    __syncthreads();
""",
}
_KERNEL = """\
$loaders
$sums
extern __shared__ __align__(128) unsigned char shared_memory[];

__global__ void __launch_bounds__(threads) product(Tensors t) {
$strides    Element* tile_a = reinterpret_cast<Element*>(shared_memory);
    Element* tile_b = tile_a + $all_of_a;
$where$prepare
    const Element* base_a = $base_a;
    const Element* base_b = $base_b;
    Sums sums;
    sums.clear();
$main
$deliver}
"""
_DELIVER = """\
    sums.each([&](int row, int col, float sum) {
        const int m = m0 + row, n = n0 + col;
        if (m < M && $column_inside) {
$deliver        }
    });
"""
_POOLED = """\
    float* results = reinterpret_cast<float*>(shared_memory);  // replaces the tiles
    sums.each([&](int row, int col, float sum) {
        const int m = m0 + row, n = n0 + col;
$deliver    });
    __syncthreads();
$pooled"""


def tiled(product: Product, plan: Plan, sums: str) -> str:
    """Return the tiled kernel. ``sums`` is the text of ``struct Sums``, which has ``clear``, ``add`` and ``each``."""
    deliver, column = product.deliver, product.column_inside
    if product.pooled:
        end = fill(_POOLED, deliver=_lines(deliver, 8), pooled=_lines(product.pooled, 4))
    else:
        end = fill(_DELIVER, deliver=_lines(deliver, 12), column_inside=column)
    up = 128 // plan.element_bytes
    stride_a, stride_b = -(-plan.a_elements // up) * up, -(-plan.b_elements // up) * up
    strides = f"    constexpr int stages = {plan.stages}, stride_a = {stride_a}, stride_b = {stride_b};\n"
    return fill(
        _KERNEL,
        loaders=loaders(plan, "a", product.a) + loaders(plan, "b", product.b),
        sums=sums,
        strides=strides if plan.stages > 1 else "",
        all_of_a="stages * stride_a" if plan.stages > 1 else str(stride_a),
        where=where(plan),
        prepare=_lines(product.prepare, 4),
        base_a=product.a.base,
        base_b=product.b.base,
        main=_MAIN[plan.copy],
        deliver=end,
    )
