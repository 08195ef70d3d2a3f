"""The source of attention kernels in CUDA C++, with a warp per query or tiles in shared memory."""

from __future__ import annotations

from engine.proposers.playbook.codegen.text import fill
from engine.proposers.playbook.patterns.attention import cuda_tensor
from engine.proposers.playbook.patterns.attention.cuda_plan import COLUMNS, Plan
from engine.proposers.playbook.patterns.attention.program import AttentionProgram

_LOAD_TYPES = {4: "unsigned", 8: "uint2", 16: "uint4"}
LOWEST = "__int_as_float(0xff800000)"  # minus infinity

_WARPS = """\
// A warp per query: each lane scores one key, then all lanes add that block's values, a part of the columns each.
__global__ void __launch_bounds__(threads) attention(Tensors t) {
    constexpr int own = (values + 31) / 32;  // columns of a lane
    const int lane = threadIdx.x % 32;
    const long long query = blockIdx.x * (threads / 32LL) + threadIdx.x / 32;
    if (query >= batch * (long long)queries) return;
    [[maybe_unused]] const long long b = query / queries;
    [[maybe_unused]] const int i = int(query % queries);
    const Element* q = $q;
    const Element* k = $k;
    const Element* v = $v;
    const int end = $end;
    float highest = $lowest, total = 0.0f, sums[own] = {};
    for (int j0 = 0; j0 < end; j0 += 32) {
        float score = $lowest;
        if (j0 + lane < end) {
            score = 0.0f;
            for (int d = 0; d < width; ++d) score += to_float(q[$q_at]) * to_float(k[$k_at]);
            score *= scale;
        }
        float top = score;
#pragma unroll
        for (int by = 16; by > 0; by /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, by));
        top = fmaxf(highest, top);
        const float shrink = exp_of(highest - top), weight = exp_of(score - top);
        float part = weight;
#pragma unroll
        for (int by = 16; by > 0; by /= 2) part += __shfl_xor_sync(~0u, part, by);
        total = total * shrink + part;
        highest = top;
#pragma unroll
        for (int c = 0; c < own; ++c) sums[c] *= shrink;
        for (int j = j0; j < j0 + 32; ++j) {
            const float share = __shfl_sync(~0u, weight, j - j0);
            if (j >= end) continue;
#pragma unroll
            for (int c = 0; c < own; ++c) {
                const int d = c * 32 + lane;
                if (d < values) sums[c] += share * to_float(v[$v_at]);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < own; ++c) {
        const int d = c * 32 + lane;
        if (d < values) finish(t, query * values + d, d, sums[c] / total);
    }
}
"""
_TILES = """\
extern __shared__ __align__(128) unsigned char shared_memory[];

$loaders
// $tile_q queries by $tile_k keys at a time; $columns neighboring threads share the rows of scores.
__global__ void __launch_bounds__(threads) attention(Tensors t) {
    constexpr int BQ = $tile_q, BK = $tile_k, ROWS = $rows, COLS = $columns, TK = BK / COLS, TV = $padded / COLS;
    constexpr int blocks = (queries + BQ - 1) / BQ;
    float* tile_q = reinterpret_cast<float*>(shared_memory);  // BQ x (width + 1), scaled
    float* tile_k = tile_q + BQ * (width + 1);                // BK x (width + 1)
    float* tile_v = tile_k + BK * (width + 1);                // BK x $padded
    float* weights = tile_v + BK * $padded;                   // BQ x (BK + 1)
    const long long b = blockIdx.x / blocks;
    const int i0 = int(blockIdx.x % blocks) * BQ, row0 = int(threadIdx.x) / COLS * ROWS, col = int(threadIdx.x) % COLS;
    const Element* q = $q;
    const Element* k = $k;
    const Element* v = $v;
    load_q(tile_q, q, i0);
    float highest[ROWS], total[ROWS], sums[ROWS][TV];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        highest[r] = $lowest;
        total[r] = 0.0f;
#pragma unroll
        for (int c = 0; c < TV; ++c) sums[r][c] = 0.0f;
    }
    const int end = $end;
    for (int j0 = 0; j0 < end; j0 += BK) {
        __syncthreads();
        load_k(tile_k, k, j0);
        load_v(tile_v, v, j0);
        __syncthreads();
        float scores[ROWS][TK] = {};
        for (int d = 0; d < width; ++d) {
            float left[ROWS], right[TK];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) left[r] = tile_q[(row0 + r) * (width + 1) + d];
#pragma unroll
            for (int c = 0; c < TK; ++c) right[c] = tile_k[(c * COLS + col) * (width + 1) + d];
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int c = 0; c < TK; ++c) scores[r][c] += left[r] * right[c];
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            float top = highest[r];
#pragma unroll
            for (int c = 0; c < TK; ++c) {
                const int j = j0 + c * COLS + col;
                if ($hidden) scores[r][c] = $lowest;
                top = fmaxf(top, scores[r][c]);
            }
#pragma unroll
            for (int by = COLS / 2; by > 0; by /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, by));
            const float shrink = exp_of(highest[r] - top);
            float part = 0.0f;
#pragma unroll
            for (int c = 0; c < TK; ++c) {
                const float weight = exp_of(scores[r][c] - top);
                weights[(row0 + r) * (BK + 1) + c * COLS + col] = weight;
                part += weight;
            }
#pragma unroll
            for (int by = COLS / 2; by > 0; by /= 2) part += __shfl_xor_sync(~0u, part, by);
            total[r] = total[r] * shrink + part;
            highest[r] = top;
#pragma unroll
            for (int c = 0; c < TV; ++c) sums[r][c] *= shrink;
        }
        __syncwarp();  // the same half of a warp writes and reads a row of weights
        for (int j = 0; j < BK; ++j) {
            float left[ROWS], right[TV];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) left[r] = weights[(row0 + r) * (BK + 1) + j];
#pragma unroll
            for (int c = 0; c < TV; ++c) right[c] = tile_v[j * $padded + c * COLS + col];
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int c = 0; c < TV; ++c) sums[r][c] += left[r] * right[c];
        }
        __syncwarp();
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int i = i0 + row0 + r;
        if (i >= queries) continue;
#pragma unroll
        for (int c = 0; c < TV; ++c) {
            const int d = c * COLS + col;
            if (d < values) finish(t, (b * queries + i) * values + d, d, sums[r][c] / total[r]);
        }
    }
}
"""
_LOADER = """\
// Rows [r0, r0 + $rows) of $name to shared memory$note, zeros outside.
__device__ __forceinline__ void load_$name($to_type* tile, const Element* from, int r0) {
    for (int e = threadIdx.x; e < $rows * $chunks; e += threads) {
        const int r = e / $chunks, d = e % $chunks * $many;
        __align__(16) Element held[$many] = {};
        if (r0 + r < $limit && d < $true_width)
            *reinterpret_cast<$chunk*>(held) = *reinterpret_cast<const $chunk*>(from + $at);
#pragma unroll
        for (int w = 0; w < $many; ++w) $store;
    }
}
"""


def kernel(program: AttentionProgram, plan: Plan) -> str:
    """Return the kernel ``attention`` over ``Tensors t``."""
    causal = program.causal
    names = {
        "q": program.q.pointer,
        "k": program.k.pointer,
        "v": program.v.pointer,
        "lowest": LOWEST,
    }
    if plan.structure == "warps":
        return fill(
            _WARPS,
            **names,
            end="min(i + 1, keys)" if causal else "keys",
            q_at=program.q.at("i", "d"),
            k_at=program.k.at("(j0 + lane)", "d"),
            v_at=program.v.at("j", "d"),
        )
    end = "min(i0 + BQ, keys)" if causal else "keys"
    if plan.structure == "tiles":
        return fill(
            _TILES,
            **names,
            loaders=_loaders(program, plan),
            tile_q=plan.queries,
            tile_k=plan.keys,
            rows=plan.rows,
            columns=COLUMNS,
            padded=plan.values,
            end=end,
            hidden="j >= keys || j > i0 + row0 + r" if causal else "j >= keys",
        )
    half = program.dtype == "float16"
    return fill(
        cuda_tensor.KERNEL,
        **names,
        loaders=_loaders(program, plan),
        type="f16" if half else "bf16",
        pair_type="__half2" if half else "__nv_bfloat162",
        make_pair="__floats2half2_rn" if half else "__floats2bfloat162_rn",
        tile_q=plan.queries,
        tile_k=plan.keys,
        width=plan.width,
        padded=plan.values,
        first_elements=max(plan.queries, plan.keys) * (plan.width + 8),
        end=end,
        hidden="(j >= keys || j > i)" if causal else "(j >= keys)",
    )


def _loaders(program: AttentionProgram, plan: Plan) -> str:
    tensor = plan.structure == "tensor"
    pitch = plan.width + (8 if tensor else 1)
    scaled = "" if tensor else ", scaled"
    of_q = f"tile[r * {pitch} + d + w] = " + ("held[w]" if tensor else "to_float(held[w]) * scale")
    of_k = f"tile[r * {pitch} + d + w] = " + ("held[w]" if tensor else "to_float(held[w])")
    of_v = f"tile[(d + w) * {plan.keys + 8} + r] = held[w]" if tensor else (
        f"tile[r * {plan.values} + d + w] = to_float(held[w])"
    )  # fmt: skip
    turned = ", turned" if tensor else ""
    pieces = (
        ("q", program.q, plan.queries, "queries", plan.width, program.width, plan.vector[0], of_q, scaled),
        ("k", program.k, plan.keys, "keys", plan.width, program.width, plan.vector[1], of_k, ""),
        ("v", program.v, plan.keys, "keys", plan.values, program.value_width, plan.vector[2], of_v, turned),
    )
    found = ""
    for name, operand, rows, limit, padded, true_width, many, store, note in pieces:
        found += fill(
            _LOADER,
            name=name,
            rows=rows,
            limit=limit,
            chunks=padded // many,
            many=many,
            true_width="width" if name != "v" else "values",
            chunk=_LOAD_TYPES[many * operand.element_bytes] if many > 1 else "Element",
            at=operand.at("(r0 + r)", "d"),
            to_type="Element" if tensor else "float",
            store=store,
            note=note,
        )
        assert padded % many == 0 and true_width % many == 0
    return found
