"""The source of the attention kernel for tensor cores: 16 queries per warp, with the weights in registers."""

KERNEL = """\
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

// 16 queries per warp by $tile_k keys at a time: scores, weights and sums stay in registers.
__global__ void __launch_bounds__(threads) attention(Tensors t) {
    constexpr int BQ = $tile_q, BK = $tile_k, DQ = $width, DV = $padded, pitch = DQ + 8, pitch_v = BK + 8;
    constexpr int blocks = (queries + BQ - 1) / BQ;
    Element* tile_k = reinterpret_cast<Element*>(shared_memory);  // BK x pitch; at first BQ x pitch queries
    Element* tile_v = tile_k + $first_elements;                   // turned: DV x pitch_v
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
