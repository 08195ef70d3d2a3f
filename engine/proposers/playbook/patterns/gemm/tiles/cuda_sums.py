"""CUDA C++ that sums a block's tile in each thread's registers or in tensor-core fragments."""

from __future__ import annotations

from engine.proposers.playbook.codegen.text import fill
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import PATCH_FLOATS, Plan

_READ = {
    1: "__device__ __forceinline__ void read(const Element* from, float* to) { to[0] = to_float(from[0]); }\n",
    "float32": """\
__device__ __forceinline__ void read(const Element* from, float* to) {
    const float4 q = *reinterpret_cast<const float4*>(from);
    to[0] = q.x; to[1] = q.y; to[2] = q.z; to[3] = q.w;
}
""",
    "half": """\
__device__ __forceinline__ void read(const Element* from, float* to) {
    __align__(8) Element q[4];
    *reinterpret_cast<uint2*>(q) = *reinterpret_cast<const uint2*>(from);
#pragma unroll
    for (int w = 0; w < 4; ++w) to[w] = to_float(q[w]);
}
""",
}  # fmt: skip
_REGISTERS = """\
$reads
// TM x TN accumulators per thread.
struct Sums {
    static constexpr int TM = $tm, TN = $tn, ROWS = BM / TM, COLS = BN / TN;
    float at[TM][TN];

    // A thread's rows and columns form groups. Elements of a group are adjacent, and the groups are far apart.
    static __device__ __forceinline__ int row(int i) {
        return i / $group_m * (ROWS * $group_m) + int(threadIdx.x) / COLS * $group_m + i % $group_m;
    }
    static __device__ __forceinline__ int col(int j) {
        return j / $group_n * (COLS * $group_n) + int(threadIdx.x) % COLS * $group_n + j % $group_n;
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) at[i][j] = 0.0f;
    }
    __device__ __forceinline__ void add(const Element* tile_a, const Element* tile_b) {
#pragma unroll$unroll
        for (int k = 0; k < BK; ++k) {
            float left[TM], right[TN];
#pragma unroll
            for (int i = 0; i < TM; i += $group_m) read$read_m(tile_a + place_of_a(row(i), k), left + i);
#pragma unroll
            for (int j = 0; j < TN; j += $group_n) read$read_n(tile_b + place_of_b(col(j), k), right + j);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) at[i][j] += left[i] * right[j];
        }
    }
    template <class Do>
    __device__ __forceinline__ void each(Do&& deliver) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) deliver(row(i), col(j), at[i][j]);
    }
};
"""
_FRAGMENTS = """\
namespace wmma = nvcuda::wmma;
// Fragments of 16 x 16 fp32 accumulators per warp, on tensor cores$precision.
struct Sums {
    static constexpr int WM = $wm, WN = $wn, DEPTH = $depth, FM = BM / WM / 16, FN = BN / WN / 16;
    using Left = wmma::fragment<wmma::matrix_a, 16, 16, DEPTH, $operand, wmma::$a_order>;
    using Right = wmma::fragment<wmma::matrix_b, 16, 16, DEPTH, $operand, wmma::$b_order>;
    wmma::fragment<wmma::accumulator, 16, 16, DEPTH, float> at[FM][FN];

    static __device__ __forceinline__ int row(int i) { return (int(threadIdx.x) / 32 / WN * FM + i) * 16; }
    static __device__ __forceinline__ int col(int j) { return (int(threadIdx.x) / 32 % WN * FN + j) * 16; }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < FM; ++i)
#pragma unroll
            for (int j = 0; j < FN; ++j) wmma::fill_fragment(at[i][j], 0.0f);
    }
    __device__ __forceinline__ void add(const Element* tile_a, const Element* tile_b) {
#pragma unroll
        for (int k = 0; k < BK; k += DEPTH) {
            Left left[FM];
            Right right[FN];
#pragma unroll
            for (int i = 0; i < FM; ++i) {
                wmma::load_matrix_sync(left[i], tile_a + place_of_a(row(i), k), $a_pitch);
$round_left            }
#pragma unroll
            for (int j = 0; j < FN; ++j) {
                wmma::load_matrix_sync(right[j], tile_b + place_of_b(col(j), k), $b_pitch);
$round_right            }
#pragma unroll
            for (int i = 0; i < FM; ++i)
#pragma unroll
                for (int j = 0; j < FN; ++j) wmma::mma_sync(at[i][j], left[i], right[j], at[i][j]);
        }
    }
    // The compiler chooses a fragment's layout, so fragments pass through shared memory, with a patch per warp.
    // The threads of a warp end in step.
    template <class Do>
    __device__ __forceinline__ void each(Do&& deliver) {
        float* patch = patches() + threadIdx.x / 32 * $patch;
#pragma unroll
        for (int i = 0; i < FM; ++i) {
#pragma unroll
            for (int j = 0; j < FN; ++j) {
                wmma::store_matrix_sync(patch, at[i][j], 20, wmma::mem_row_major);
                __syncwarp();
#pragma unroll
                for (int e = threadIdx.x % 32; e < 256; e += 32)
                    deliver(row(i) + e / 16, col(j) + e % 16, patch[e / 16 * 20 + e % 16]);
                __syncwarp();
            }
        }
    }
    static __device__ __forceinline__ float* patches() {
        __shared__ __align__(128) float all[$warps * $patch];
        return all;
    }
};
"""
_ROUND = """\
#pragma unroll
                for (int e = 0; e < {name}[{i}].num_elements; ++e)
                    {name}[{i}].x[e] = wmma::__float_to_tf32({name}[{i}].x[e]);
"""


def sums_in_registers(plan: Plan, dtype: str) -> str:
    """Return ``struct Sums`` for fp32 arithmetic."""
    group_m = 4 if not plan.a_along_k and plan.tm % 4 == 0 else 1
    group_n = 4 if not plan.b_along_k and plan.tn % 4 == 0 else 1
    vector = _READ["float32" if dtype == "float32" else "half"]
    wanted = {group_m, group_n}
    reads = (_READ[1].replace("read(", "read1(") if 1 in wanted else "") + (
        vector.replace("read(", "read4(") if 4 in wanted else ""
    )
    return fill(
        _REGISTERS,
        reads=reads,
        tm=plan.tm,
        tn=plan.tn,
        group_m=group_m,
        group_n=group_n,
        read_m=group_m,
        read_n=group_n,
        unroll="" if plan.bk <= 16 else " 8",
    )


def sums_in_fragments(plan: Plan, dtype: str) -> str:
    """Return ``struct Sums`` for tensor cores: fp16, bf16, or fp32 rounded to TF32."""
    tf32 = dtype == "float32"
    operand = {"float32": "wmma::precision::tf32", "float16": "__half", "bfloat16": "__nv_bfloat16"}[dtype]
    return fill(
        _FRAGMENTS,
        precision=", with operands rounded to TF32 (10 bits of mantissa)" if tf32 else "",
        wm=plan.wm,
        wn=plan.wn,
        depth=8 if tf32 else 16,
        operand=operand,
        a_order="row_major" if plan.a_along_k else "col_major",
        b_order="col_major" if plan.b_along_k else "row_major",
        a_pitch=plan.a_pitch,
        b_pitch=plan.b_pitch,
        round_left=_ROUND.format(name="left", i="i") if tf32 else "",
        round_right=_ROUND.format(name="right", i="j") if tf32 else "",
        warps=plan.wm * plan.wn,
        patch=PATCH_FLOATS,
    )
