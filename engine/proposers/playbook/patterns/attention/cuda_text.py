"""The source of attention kernels in CUDA C++: a warp per query, tiles in shared memory, or tensor cores."""

from __future__ import annotations

from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.cuda import Cuda
from engine.proposers.playbook.codegen.rendering import fixed_text
from engine.proposers.playbook.codegen.size_assertions import size_assertion
from engine.proposers.playbook.codegen.text import fill
from engine.proposers.playbook.ir.sizes import Size, factor, text
from engine.proposers.playbook.patterns.attention.cuda_plan import COLUMNS, MOST_TENSOR_WIDTH, Plan
from engine.proposers.playbook.patterns.attention.program import AttentionProgram
from engine.proposers.playbook.patterns.gemm.program import Operand
from engine.proposers.playbook.patterns.gemm.tiles.cuda_file import launch_lines
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import (
    conversions,
    dtypes_of,
    finish,
    helpers,
    pointers,
    tensors_struct,
)

LOWEST = "__int_as_float(0xff800000)"  # minus infinity

_BODY = """\
namespace $space {

using Element = $element;
constexpr int queries = $queries, keys = $keys, width = $width, values = $values, threads = $threads;
$scale
$size_assertions
$conversions$helpers$tensors
__device__ __forceinline__ float exp_of(float a) { return $exponential; }
$finish
$kernel
}  // namespace $space

"""
_FAST_EXP = "exp2f(1.4426950408889634f * a)"
_WARPS = """\
// A warp per query: each lane scores one key, then adds the block's weighted values in its part of the columns.
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
_TENSOR = """\
extern __shared__ __align__(128) unsigned char shared_memory[];

$loaders
// d += a b on tensor cores: 16 x 16 times 16 x 8. A thread holds, with g = lane / 4 and p = 2 (lane % 4):
// of a rows g and g + 8 at columns p, p + 1, p + 8, p + 9; of b column g at rows p, p + 1, p + 8, p + 9;
// of d rows g and g + 8 at columns p, p + 1 (PTX ISA, mma.m16n8k16).
__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.$type.$type.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ unsigned pair(const Element* from) { return *reinterpret_cast<const unsigned*>(from); }
__device__ __forceinline__ unsigned pair(float low, float high) {
    const $pair_type both = $make_pair(low, high);
    unsigned bits;
    memcpy(&bits, &both, 4);
    return bits;
}

// 16 queries per warp by $tile_k keys at a time: scores, weights and accumulators stay in registers.
__global__ void __launch_bounds__(threads) attention(Tensors t) {
    constexpr int BQ = $tile_q, BK = $tile_k, DQ = padded_width, DV = padded_values, pitch = DQ + 8, pitch_v = BK + 8;
    constexpr int blocks = (queries + BQ - 1) / BQ;
    Element* tile_k = reinterpret_cast<Element*>(shared_memory);  // BK x pitch; at first BQ x pitch queries
    Element* tile_v = tile_k + $first_elements;  // transposed: DV x pitch_v
    const long long b = blockIdx.x / blocks;
    const int i0 = int(blockIdx.x % blocks) * BQ, lane = threadIdx.x % 32, g = lane / 4, p = lane % 4 * 2;
    const int row0 = int(threadIdx.x) / 32 * 16;
    const Element* q = $q;
    const Element* k = $k;
    const Element* v = $v;
    load_q(tile_k, q, i0);
    __syncthreads();
    unsigned query[DQ / 16][4];
#pragma unroll
    for (int s = 0; s < DQ / 16; ++s) {
        const Element* at = tile_k + (row0 + g) * pitch + s * 16 + p;
        query[s][0] = pair(at);
        query[s][1] = pair(at + 8 * pitch);
        query[s][2] = pair(at + 8);
        query[s][3] = pair(at + 8 * pitch + 8);
    }
    float highest[2] = {$lowest, $lowest}, total[2] = {0.0f, 0.0f}, sums[DV / 8][4] = {};
    const int end = $end;
    for (int j0 = 0; j0 < end; j0 += BK) {
        __syncthreads();
        load_k(tile_k, k, j0);
        load_v(tile_v, v, j0);
        __syncthreads();
        float scores[BK / 8][4] = {};
#pragma unroll
        for (int s = 0; s < DQ / 16; ++s)
#pragma unroll
            for (int n = 0; n < BK / 8; ++n) {
                const Element* at = tile_k + (n * 8 + g) * pitch + s * 16 + p;
                const unsigned key[2] = {pair(at), pair(at + 8)};
                multiply(scores[n], query[s], key);
            }
#pragma unroll
        for (int h = 0; h < 2; ++h) {  // rows g and g + 8
            [[maybe_unused]] const int i = i0 + row0 + g + 8 * h;
            float top = highest[h];
#pragma unroll
            for (int n = 0; n < BK / 8; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int j = j0 + n * 8 + p + e;
                    float& score = scores[n][2 * h + e];
                    score = $hidden ? $lowest : score * scale;
                    top = fmaxf(top, score);
                }
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            const float shrink = exp_of(highest[h] - top);
            float part = 0.0f;
#pragma unroll
            for (int n = 0; n < BK / 8; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& score = scores[n][2 * h + e];
                    score = exp_of(score - top);
                    part += score;
                }
            part += __shfl_xor_sync(~0u, part, 1);
            part += __shfl_xor_sync(~0u, part, 2);
            total[h] = total[h] * shrink + part;
            highest[h] = top;
#pragma unroll
            for (int n = 0; n < DV / 8; ++n) {
                sums[n][2 * h] *= shrink;
                sums[n][2 * h + 1] *= shrink;
            }
        }
#pragma unroll
        for (int s = 0; s < BK / 16; ++s) {
            const float(&low)[4] = scores[2 * s];
            const float(&high)[4] = scores[2 * s + 1];
            const unsigned weight[4] = {pair(low[0], low[1]), pair(low[2], low[3]), pair(high[0], high[1]),
                                        pair(high[2], high[3])};
#pragma unroll
            for (int n = 0; n < DV / 8; ++n) {
                const Element* at = tile_v + (n * 8 + g) * pitch_v + s * 16 + p;
                const unsigned value[2] = {pair(at), pair(at + 8)};
                multiply(sums[n], weight, value);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int i = i0 + row0 + g + 8 * h;
        if (i >= queries) continue;
#pragma unroll
        for (int n = 0; n < DV / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int d = n * 8 + p + e;
                if (d < values) finish(t, (b * queries + i) * values + d, d, sums[n][2 * h + e] / total[h]);
            }
    }
}
"""
_LOADER = """\
// Loads rows [r0, r0 + $rows) of $name into shared memory$note, with zeros outside.
__device__ __forceinline__ void load_$name($to_type* tile, const Element* from, int r0) {
    for (int e = threadIdx.x; e < $rows * ($padded / many_$name); e += threads) {
        const int r = e / ($padded / many_$name), d = e % ($padded / many_$name) * many_$name;
        Several<many_$name> held = {};
        if (r0 + r < $limit && d < $true_width) held = *reinterpret_cast<const Several<many_$name>*>(from + $at);
#pragma unroll
        for (int w = 0; w < many_$name; ++w) $store;
    }
}
"""
_TENSOR_SIZES = """\
constexpr int padded_width = (width + 15) / 16 * 16, padded_values = (values + 15) / 16 * 16;  // in steps of mma
constexpr int shared_bytes = 2 * ($first_elements + padded_values * ($tile_k + 8));
"""
_SEVERAL = """\
template <int many>
struct __align__(many * int(sizeof(Element))) Several {  // elements that one instruction loads
    Element at[many];
};
constexpr int many_of(long long steps, int widest) {
    return steps % widest == 0 ? widest : widest > 1 ? many_of(steps, widest / 2) : 1;
}
"""


def body(program: AttentionProgram, plan: Plan, spec: ProblemSpec, *, fast: bool, space: str = "playbook") -> str:
    """Return the kernel ``attention`` with its helpers and constants, in namespace ``space``."""
    names = pointers([program.chain], program.q.tensor, program.k.tensor, program.v.tensor)
    dtypes = dtypes_of(spec)
    batch = f", batch = {factor(program.batch)}" if plan.structure == "warps" else ""
    return fill(
        _BODY,
        space=space,
        element=ctype(program.dtype, "cu"),
        queries=text(program.rows),
        keys=text(program.keys),
        width=text(program.width),
        values=text(program.value_width),
        threads=f"{plan.threads}{batch}",
        scale=scale_of(program),
        size_assertions="\n".join([*program.size_assertions, *_size_assertions(program, plan)]),
        conversions=conversions({program.dtype, *(dtypes[name] for name in names)}),
        helpers=helpers([program.chain]),
        tensors=tensors_struct(spec, names),
        exponential=_FAST_EXP if fast else "expf(a)",
        finish=finish(program.chain, program.value_width, fast),
        kernel=kernel(program, plan),
    )


def scale_of(program: AttentionProgram) -> str:
    """Return the C definition of the attention's ``scale``."""
    if program.usual_scale:
        return fixed_text("_usual_scale.cu.j2")
    return f"constexpr float scale = {Cuda().number(program.scale)};"


def launching(program: AttentionProgram, plan: Plan, names: list[str], space: str = "playbook") -> list[str]:
    """Return the statements that launch the kernel of :func:`body`."""
    batch, rows = factor(program.batch), f"{space}::queries"
    queries = f"({batch} * {rows} + {plan.queries - 1}) / {plan.queries}"
    blocks = f"{batch} * (({rows} + {plan.queries - 1}) / {plan.queries})"
    grid = f"unsigned({queries if plan.structure == 'warps' else blocks})"
    return [
        f"const {space}::Tensors t{{{', '.join(names)}}};",
        *(
            [
                f"const cudaError_t allowed = cudaFuncSetAttribute({space}::attention,",
                f"    cudaFuncAttributeMaxDynamicSharedMemorySize, {space}::shared_bytes);",
                "if (allowed != cudaSuccess) return int(allowed);",
                f"{space}::attention<<<{grid}, {plan.threads}, {space}::shared_bytes, stream>>>(t);",
            ]
            if plan.structure == "tensor"
            else launch_lines(f"{space}::attention", grid, plan.threads, plan.shared_bytes)
        ),
        "return int(cudaGetLastError());",
    ]


def _size_assertions(program: AttentionProgram, plan: Plan) -> list[str]:
    """Assert the plan's assumptions about widths and vector loads."""
    widths = [(program.width, "queries and keys"), (program.value_width, "values")]
    if plan.structure == "tensor":
        return [
            size_assertion(f"{factor(size)} <= {MOST_TENSOR_WIDTH}", f"{what} of at most {MOST_TENSOR_WIDTH} elements")
            for size, what in widths
        ]
    if plan.structure == "warps":
        return [size_assertion(f"{factor(program.value_width)} <= 1024", "values of at most 1024 elements")]
    lines = [size_assertion(f"{text(size)} == {int(size)}", f"{what} of {int(size)} elements") for size, what in widths]
    for operand, many in zip((program.q, program.k, program.v), plan.vector, strict=True):
        for size in (operand.row_stride, operand.offset, *(step for _, step in operand.batch)):
            if many > 1 and isinstance(size, Size):
                lines.append(
                    size_assertion(f"{factor(size)} % {many} == 0", f"{text(size)} to be a multiple of {many}")
                )
    return list(dict.fromkeys(lines))


def kernel(program: AttentionProgram, plan: Plan) -> str:
    """Return the source of the kernel function ``attention``."""
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
        _TENSOR,
        **names,
        loaders=_loaders(program, plan),
        type="f16" if half else "bf16",
        pair_type="__half2" if half else "__nv_bfloat162",
        make_pair="__floats2half2_rn" if half else "__floats2bfloat162_rn",
        tile_q=plan.queries,
        tile_k=plan.keys,
        first_elements=_first_elements(plan),
        end=end,
        hidden="(j >= keys || j > i)" if causal else "(j >= keys)",
    )


def _first_elements(plan: Plan) -> str:
    """Return how many elements of shared memory precede the values. The queries use this memory first, then the
    keys.
    """
    return f"{max(plan.queries, plan.keys)} * (padded_width + 8)"


def _loaders(program: AttentionProgram, plan: Plan) -> str:
    tensor = plan.structure == "tensor"
    pitch = "(padded_width + 8)" if tensor else f"{plan.width + 1}"
    scaled = "" if tensor else ", scaled"
    of_q = f"tile[r * {pitch} + d + w] = " + ("held.at[w]" if tensor else "to_float(held.at[w]) * scale")
    of_k = f"tile[r * {pitch} + d + w] = " + ("held.at[w]" if tensor else "to_float(held.at[w])")
    of_v = f"tile[(d + w) * {plan.keys + 8} + r] = held.at[w]" if tensor else (
        f"tile[r * {plan.values} + d + w] = to_float(held.at[w])"
    )  # fmt: skip
    turned = ", transposed" if tensor else ""
    width, values = ("padded_width", "padded_values") if tensor else (str(plan.width), str(plan.values))
    pieces = (
        ("q", program.q, plan.queries, "queries", width, "width", plan.vector[0], of_q, scaled),
        ("k", program.k, plan.keys, "keys", width, "width", plan.vector[1], of_k, ""),
        ("v", program.v, plan.keys, "keys", values, "values", plan.vector[2], of_v, turned),
    )
    found = (fill(_TENSOR_SIZES, first_elements=_first_elements(plan), tile_k=plan.keys) if tensor else "") + _SEVERAL
    for name, operand, rows, limit, padded, true_width, many, store, note in pieces:
        found += f"constexpr int many_{name} = {_many(operand, true_width, many) if tensor else many};\n"
        found += fill(
            _LOADER,
            name=name,
            rows=rows,
            limit=limit,
            padded=padded,
            true_width=true_width,
            at=operand.at("(r0 + r)", "d"),
            to_type="Element" if tensor else "float",
            store=store,
            note=note,
        )
    return found


def _many(operand: Operand, width: str, many: int) -> str:
    """Return a C expression for the number of elements per load of a row. A load is at most 16 bytes wide. ``many`` is
    this number at the searched sizes. If ``many`` is 1, return 1.
    """
    if many == 1:
        return "1"
    steps = [operand.row_stride, operand.offset, *(step for _, step in operand.batch)]
    named = [width, *(factor(step) for step in steps if step)]
    return f"many_of({' | '.join(dict.fromkeys(named))}, {16 // operand.element_bytes})"
