// LayerNorm over 4194304 elements, 16 rows. 128 co-resident blocks; block b owns columns
// [b*32768, (b+1)*32768): its weights and biases stay in shared memory as fp16 pairs, the row's
// slice stays in registers as half2 of x - s (s: the row's first element), so DRAM sees the
// minimal traffic.
// Warp-specialised, 18 warps: 0..15 compute and store, 16 loads in bulk, 17 does the statistics
// between the blocks. The only __syncthreads is the one after the mbarrier init; afterwards:
//   full[3]      loader -> compute    slot filled          (1 arrival + bytes)
//   empty[3]     compute -> loader    slot read            (16 arrivals)
//   red_full[2]  compute -> stat warp red[row & 1] written (16 arrivals)
//   stat_full[2] stat warp -> compute stat[row & 1] written (1 arrival)
// red and stat need no empty barriers: a compute warp reads stat(row) before it signals
// red(row + 1), and the stat warp reads red(row) before it signals stat(row); so nothing of
// row + 2 is written before everything of row was read.
// Stores lag by 5 chunks: step 0 of a row writes chunk 3 of row - 2, steps 1, 2, 3 write
// chunks 0, 1, 2 of row - 1.
#include <cuda_fp16.h>

namespace {

constexpr int ROWS = 16;
constexpr int BLOCKS = 128;
constexpr int COMPUTE_WARPS = 16;
constexpr int COMPUTE = COMPUTE_WARPS * 32;       // 512 compute threads
constexpr int LOAD_WARP = 16;
constexpr int STAT_WARP = 17;
constexpr int THREADS = COMPUTE + 64;             // 576
constexpr int ROW_LEN = 4194304;
constexpr int SLICE = ROW_LEN / BLOCKS;           // 32768 floats
constexpr int CHUNK = 8192;                       // floats per slot, 32 KiB
constexpr int CHUNKS = SLICE / CHUNK;             // 4 per row
constexpr int CHUNK4 = CHUNK / 4;                 // 2048 float4
constexpr int PER = CHUNK4 / COMPUTE;             // 4 float4 per thread and chunk
constexpr int QUADS = CHUNKS * PER;               // 16 float4 per thread and row
constexpr int CHALVES = 2 * PER;                  // 8 half2 per thread and chunk
constexpr int HALVES = 2 * QUADS;                 // 32 half2 per thread and row
constexpr int SLOTS = 3;
constexpr unsigned CHUNK_BYTES = CHUNK * 4;       // 32768
constexpr int WB_BYTES = SLICE * 4;               // 131072
constexpr int SMEM_BYTES = WB_BYTES + SLOTS * CHUNK * 4;   // 229376
constexpr int COUNTER_STRIDE = 32;                // one counter per 128 bytes
constexpr int COUNTER_BYTES = ROWS * COUNTER_STRIDE * 4;   // 2048

// indices of the mbarriers
constexpr int BAR_FULL = 0;                       // 3
constexpr int BAR_EMPTY = 3;                      // 3
constexpr int BAR_RED = 6;                        // 2
constexpr int BAR_STAT = 8;                       // 2
constexpr int BARS = 10;

static_assert(CHUNKS == 4 && PER == 4 && QUADS == 16 && BLOCKS == 128 && SLOTS == 3, "layout");

__device__ __forceinline__ unsigned smem_addr(const void* p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void mbar_init(unsigned bar, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void mbar_arrive(unsigned bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}

__device__ __forceinline__ void mbar_wait(unsigned bar, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t"
            "}\n"
            : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (!done);
}

// called by one thread
__device__ __forceinline__ void bulk_load(unsigned dst, const float* src, unsigned bar,
                                          unsigned long long policy) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(bar), "r"(CHUNK_BYTES) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;"
        :: "r"(dst), "l"(src), "r"(CHUNK_BYTES), "r"(bar), "l"(policy) : "memory");
}

// volatile: stays where it is written, well ahead of its use
__device__ __forceinline__ float load_early(const float* p) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

__device__ __forceinline__ unsigned pack_pair(float w, float b) {
    const unsigned lo = __half_as_ushort(__float2half_rn(w));
    const unsigned hi = __half_as_ushort(__float2half_rn(b));
    return lo | (hi << 16);
}

// low half: weight (x), high half: bias (y)
__device__ __forceinline__ float2 unpack_pair(unsigned u) {
    return make_float2(__half2float(__ushort_as_half((unsigned short)(u & 0xffffu))),
                       __half2float(__ushort_as_half((unsigned short)(u >> 16))));
}

// Whole stat warp: sum the warps' sums, publish (mean - s, M2) of this block's slice of a row.
__device__ __forceinline__ void publish(float2 r, float2* my_pair, unsigned* counter, int lane) {
    const float t1 = warp_sum(r.x);
    const float t2 = warp_sum(r.y);
    if (lane == 0) {
        const float dm = t1 * (1.0f / SLICE);
        __stcg(my_pair, make_float2(dm, t2 - t1 * dm));
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(counter) : "memory");
    }
    __syncwarp();
}

// Whole stat warp: wait until all blocks have published the row, merge the 128 pairs.
// Returns (rstd, -(mean - s) * rstd), so that (x - mean) * rstd = (x - s) * first + second.
__device__ __forceinline__ float2 merge(const float2* row_pairs, const unsigned* counter,
                                        int lane) {
    unsigned seen;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(seen) : "l"(counter) : "memory");
    } while (seen < (unsigned)BLOCKS);
    __syncwarp();

    float2 p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = __ldcg(row_pairs + i * 32 + lane);
    // Chan's formula for 128 parts of equal size
    const float dmean = warp_sum((p[0].x + p[1].x) + (p[2].x + p[3].x)) * (1.0f / BLOCKS);
    float between = 0.f, within = 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float d = p[i].x - dmean;
        between += d * d;
        within += p[i].y;
    }
    const float all = warp_sum(within + (float)SLICE * between);
    const float rstd = rsqrtf(all * (1.0f / ROW_LEN) + 1e-5f);
    return make_float2(rstd, -dmean * rstd);
}

// Write chunk C (4 float4 of this thread) of a row; its values are h[H0 .. H0 + 7].
// orow and wbt are already offset by tid.
template <int C, int H0, int N>
__device__ __forceinline__ void emit_chunk(float4* orow, const uint4* wbt,
                                           const __half2 (&h)[N], float2 st) {
    static_assert(C >= 0 && C < CHUNKS && H0 + CHALVES <= N, "chunk");
#pragma unroll
    for (int j = 0; j < PER; ++j) {
        // quad of the slice: C * 2048 + j * 512 + tid == (C * 4 + j) * 512 + tid
        const int i = C * PER + j;
        const uint4 u = wbt[i * COMPUTE];
        const float2 lo = __half22float2(h[H0 + 2 * j]);
        const float2 hi = __half22float2(h[H0 + 2 * j + 1]);
        const float2 p0 = unpack_pair(u.x);
        const float2 p1 = unpack_pair(u.y);
        const float2 p2 = unpack_pair(u.z);
        const float2 p3 = unpack_pair(u.w);
        float4 o;
        o.x = fmaf(fmaf(lo.x, st.x, st.y), p0.x, p0.y);
        o.y = fmaf(fmaf(lo.y, st.x, st.y), p1.x, p1.y);
        o.z = fmaf(fmaf(hi.x, st.x, st.y), p2.x, p2.y);
        o.w = fmaf(fmaf(hi.y, st.x, st.y), p3.x, p3.y);
        __stcs(orow + i * COMPUTE, o);
    }
}

__global__ void __launch_bounds__(THREADS, 1)
layernorm_kernel(const float* x, const float* weight, const float* bias, float* out,
                 unsigned* counters, float2* pairs) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ __align__(8) unsigned long long bars[BARS];
    __shared__ float2 red[2][COMPUTE_WARPS];
    __shared__ float2 stat[2];

    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int blk = blockIdx.x;

    unsigned char* ring = smem + WB_BYTES;
    const unsigned bar_base = smem_addr(bars);
    const unsigned full = bar_base + 8u * BAR_FULL;
    const unsigned empty = bar_base + 8u * BAR_EMPTY;
    const unsigned red_full = bar_base + 8u * BAR_RED;
    const unsigned stat_full = bar_base + 8u * BAR_STAT;

    if (tid == 0) {
        for (int i = 0; i < SLOTS; ++i) {
            mbar_init(full + 8u * i, 1);
            mbar_init(empty + 8u * i, COMPUTE_WARPS);
        }
        for (int i = 0; i < 2; ++i) {
            mbar_init(red_full + 8u * i, COMPUTE_WARPS);
            mbar_init(stat_full + 8u * i, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();                                       // the only one

    // ---------------------------------------------------------------- warp 16: bulk loader
    if (warp == LOAD_WARP) {
        if (lane == 0) {
            const unsigned ring_base = smem_addr(ring);
            unsigned long long policy;
            asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#pragma unroll 1
            for (int n = 0; n < ROWS * CHUNKS; ++n) {
                const int turn = n / SLOTS;
                const int slot = n - turn * SLOTS;
                if (turn > 0) {                            // chunk n - 3 has been read
                    mbar_wait(empty + 8u * slot, (unsigned)(turn - 1) & 1u);
                    asm volatile("fence.proxy.async;" ::: "memory");
                }
                bulk_load(ring_base + (unsigned)slot * CHUNK_BYTES,
                          x + ((n >> 2) * ROW_LEN + blk * SLICE + (n & 3) * CHUNK),
                          full + 8u * slot, policy);
            }
        }
        return;
    }

    // ---------------------------------------------------------------- warp 17: statistics
    if (warp == STAT_WARP) {
#pragma unroll 1
        for (int row = 0; row < ROWS; ++row) {
            const int buf = row & 1;
            mbar_wait(red_full + 8u * buf, (unsigned)(row >> 1) & 1u);
            __syncwarp();
            float2 r = make_float2(0.f, 0.f);
            if (lane < COMPUTE_WARPS) r = red[buf][lane];
            __syncwarp();
            publish(r, pairs + row * BLOCKS + blk, counters + row * COUNTER_STRIDE, lane);
            const float2 st = merge(pairs + row * BLOCKS, counters + row * COUNTER_STRIDE, lane);
            if (lane == 0) {
                stat[buf] = st;
                mbar_arrive(stat_full + 8u * buf);         // releases the store above
            }
            __syncwarp();
        }
        return;
    }

    // ---------------------------------------------------------------- warps 0..15: compute
    uint4* wbt = reinterpret_cast<uint4*>(smem) + tid;     // 8192 quads of (w, b) pairs

    // weights and biases: each thread converts exactly the quads it uses later
    {
        const float4* wp = reinterpret_cast<const float4*>(weight + blk * SLICE) + tid;
        const float4* bp = reinterpret_cast<const float4*>(bias + blk * SLICE) + tid;
#pragma unroll 8
        for (int i = 0; i < QUADS; ++i) {
            const float4 w = __ldcs(wp + i * COMPUTE);
            const float4 b = __ldcs(bp + i * COMPUTE);
            uint4 u;
            u.x = pack_pair(w.x, b.x);
            u.y = pack_pair(w.y, b.y);
            u.z = pack_pair(w.z, b.z);
            u.w = pack_pair(w.w, b.w);
            wbt[i * COMPUTE] = u;
        }
    }

    float s = load_early(x);                               // first element of row 0
    int off = blk * SLICE;                                 // this slice in row `row`; <= 2^26
    int slot = 0;                                          // chunk number % 3
    unsigned parity = 0;                                   // (chunk number / 3) & 1
    float2 st = make_float2(0.f, 0.f);                     // statistics of the row being written

    __half2 h[HALVES];                                     // row - 1: x - (its s)
    __half2 h3_old[CHALVES];                               // row - 2, chunk 3
#pragma unroll
    for (int i = 0; i < HALVES; ++i) h[i] = __floats2half2_rn(0.f, 0.f);
#pragma unroll
    for (int i = 0; i < CHALVES; ++i) h3_old[i] = __floats2half2_rn(0.f, 0.f);

#pragma unroll 1
    for (int row = 0; row < ROWS; ++row) {
        // first element of the next row, asked for early
        const float s_next = load_early(x + (row < ROWS - 1 ? row + 1 : row) * ROW_LEN);

        __half2 hn[HALVES];                                // this row: x - s
        float s1 = 0.f, s2 = 0.f;
#pragma unroll
        for (int k = 0; k < CHUNKS; ++k) {
            // read the chunk, release its slot
            mbar_wait(full + 8u * slot, parity);
            const float4* sp =
                reinterpret_cast<const float4*>(ring + slot * (int)CHUNK_BYTES) + tid;
            float4 v[PER];
#pragma unroll
            for (int j = 0; j < PER; ++j) v[j] = sp[j * COMPUTE];
            __syncwarp();
            if (lane == 0) mbar_arrive(empty + 8u * slot);

#pragma unroll
            for (int j = 0; j < PER; ++j) {
                const float a = v[j].x - s, b = v[j].y - s, d = v[j].z - s, e = v[j].w - s;
                s1 += (a + b) + (d + e);
                s2 += (a * a + b * b) + (d * d + e * e);
                const int i = k * PER + j;
                hn[2 * i] = __floats2half2_rn(a, b);
                hn[2 * i + 1] = __floats2half2_rn(d, e);
            }

            if (k == 3) {                                  // this thread's sums are complete
                s1 = warp_sum(s1);
                s2 = warp_sum(s2);
                if (lane == 0) {
                    red[row & 1][warp] = make_float2(s1, s2);
                    mbar_arrive(red_full + 8u * (row & 1));
                }
            }

            // write the chunk that lies 5 chunks back
            if (k == 0) {
                if (row > 1) {                             // st: still that of row - 2
                    float4* orow = reinterpret_cast<float4*>(out + (off - 2 * ROW_LEN)) + tid;
                    emit_chunk<3, 0>(orow, wbt, h3_old, st);
                }
            } else if (row > 0) {
                if (k == 1) {                              // statistics of row - 1
                    const int prev = row - 1;
                    mbar_wait(stat_full + 8u * (prev & 1), (unsigned)(prev >> 1) & 1u);
                    st = stat[prev & 1];
                }
                float4* orow = reinterpret_cast<float4*>(out + (off - ROW_LEN)) + tid;
                if (k == 1) emit_chunk<0, 0 * CHALVES>(orow, wbt, h, st);
                if (k == 2) emit_chunk<1, 1 * CHALVES>(orow, wbt, h, st);
                if (k == 3) emit_chunk<2, 2 * CHALVES>(orow, wbt, h, st);
            }

            slot = (slot == SLOTS - 1) ? 0 : slot + 1;
            parity ^= (slot == 0) ? 1u : 0u;
        }

#pragma unroll
        for (int i = 0; i < CHALVES; ++i) h3_old[i] = h[3 * CHALVES + i];
#pragma unroll
        for (int i = 0; i < HALVES; ++i) h[i] = hn[i];
        s = s_next;
        off += ROW_LEN;
    }

    // epilogue (off is now one row past the last): chunk 3 of row 14, then row 15
    {
        float4* orow = reinterpret_cast<float4*>(out + (off - 2 * ROW_LEN)) + tid;
        emit_chunk<3, 0>(orow, wbt, h3_old, st);           // st: still that of row 14
    }
    {
        constexpr int LAST = ROWS - 1;
        mbar_wait(stat_full + 8u * (LAST & 1), (unsigned)(LAST >> 1) & 1u);
        st = stat[LAST & 1];
        float4* orow = reinterpret_cast<float4*>(out + (off - ROW_LEN)) + tid;
        emit_chunk<0, 0 * CHALVES>(orow, wbt, h, st);
        emit_chunk<1, 1 * CHALVES>(orow, wbt, h, st);
        emit_chunk<2, 2 * CHALVES>(orow, wbt, h, st);
        emit_chunk<3, 3 * CHALVES>(orow, wbt, h, st);
    }
}

}  // namespace

extern "C" size_t workspace_bytes(void) {
    return (size_t)COUNTER_BYTES + (size_t)ROWS * BLOCKS * sizeof(float2);
}

extern "C" int launch(const float* x, const float* ln_weight, const float* ln_bias, float* out,
                      void* workspace, cudaStream_t stream) {
    cudaError_t err = cudaFuncSetAttribute(layernorm_kernel,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    if (err != cudaSuccess) return (int)err;
    unsigned* counters = reinterpret_cast<unsigned*>(workspace);
    float2* pairs = reinterpret_cast<float2*>(reinterpret_cast<char*>(workspace) + COUNTER_BYTES);
    err = cudaMemsetAsync(counters, 0, COUNTER_BYTES, stream);
    if (err != cudaSuccess) return (int)err;
    void* args[] = {(void*)&x, (void*)&ln_weight, (void*)&ln_bias, (void*)&out,
                    (void*)&counters, (void*)&pairs};
    err = cudaLaunchCooperativeKernel((const void*)layernorm_kernel, dim3(BLOCKS), dim3(THREADS),
                                      args, (size_t)SMEM_BYTES, stream);
    if (err != cudaSuccess) return (int)err;
    return (int)cudaGetLastError();
}
