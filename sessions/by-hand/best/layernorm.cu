// LayerNorm over 4194304 elements, 16 rows. 128 co-resident blocks; block b owns columns
// [b*32768, (b+1)*32768): its weights and biases stay in shared memory as 16-bit pairs, the
// row's slice stays in registers as half2 of x - s (s: the row's first element), so DRAM sees
// the minimal traffic. fp16 (rounding 2^-11) is used for the pairs rather than bf16 (2^-8):
// the sum h*w + b may cancel.
#include <cuda_fp16.h>

namespace {

constexpr int ROWS = 16;
constexpr int BLOCKS = 128;
constexpr int THREADS = 1024;
constexpr int ROW_LEN = 4194304;
constexpr int SLICE = ROW_LEN / BLOCKS;           // 32768 floats
constexpr int CHUNK = 8192;                       // floats per slot, 32 KiB
constexpr int CHUNKS = SLICE / CHUNK;             // 4 per row
constexpr int CHUNK4 = CHUNK / 4;                 // 2048 float4
constexpr int PER = CHUNK4 / THREADS;             // 2 float4 per thread and chunk
constexpr int QUADS = CHUNKS * PER;               // 8 float4 per thread and row
constexpr int SLOTS = 3;
constexpr int TOTAL = ROWS * CHUNKS;              // 64 chunks per block
constexpr unsigned CHUNK_BYTES = CHUNK * 4;       // 32768
constexpr int WB_BYTES = SLICE * 4;               // 131072
constexpr int SMEM_BYTES = WB_BYTES + SLOTS * CHUNK * 4;   // 229376
constexpr int COUNTER_STRIDE = 32;                // one counter per 128 bytes
constexpr int COUNTER_BYTES = ROWS * COUNTER_STRIDE * 4;   // 2048

static_assert(CHUNKS == 4 && PER == 2 && QUADS == 8 && BLOCKS == 128, "layout");

__device__ __forceinline__ unsigned smem_addr(const void* p) {
    return (unsigned)__cvta_generic_to_shared(p);
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

__device__ __forceinline__ void bulk_load(unsigned dst, const float* src, unsigned bar,
                                          unsigned long long policy) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(bar), "r"(CHUNK_BYTES) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;"
        :: "r"(dst), "l"(src), "r"(CHUNK_BYTES), "r"(bar), "l"(policy) : "memory");
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

__global__ void __launch_bounds__(THREADS, 1)
layernorm_kernel(const float* x, const float* weight, const float* bias, float* out,
                 unsigned* counters, float2* pairs) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ __align__(8) unsigned long long full[SLOTS];
    __shared__ float2 red[32];
    __shared__ float2 stat;

    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int blk = blockIdx.x;

    uint4* wb = reinterpret_cast<uint4*>(smem);            // 8192 quads of (w, b) pairs
    unsigned char* ring = smem + WB_BYTES;
    const unsigned ring_base = smem_addr(ring);
    const unsigned bar_base = smem_addr(full);

    const float* xs = x + (size_t)blk * SLICE;             // + row * ROW_LEN + k * CHUNK
    float* os = out + (size_t)blk * SLICE;

    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));

    if (tid == 0) {
        for (int i = 0; i < SLOTS; ++i)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar_base + 8u * i) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    if (tid == 0) {
        for (int c = 0; c < SLOTS; ++c)                    // chunks 0, 1, 2 of row 0
            bulk_load(ring_base + c * CHUNK_BYTES, xs + c * CHUNK, bar_base + 8u * c, policy);
    }

    // weights and biases: each thread converts exactly the quads it uses later
    {
        const float4* wp = reinterpret_cast<const float4*>(weight + (size_t)blk * SLICE);
        const float4* bp = reinterpret_cast<const float4*>(bias + (size_t)blk * SLICE);
#pragma unroll 4
        for (int i = 0; i < QUADS; ++i) {
            const int q = i * THREADS + tid;
            const float4 w = __ldcs(wp + q);
            const float4 b = __ldcs(bp + q);
            uint4 u;
            u.x = pack_pair(w.x, b.x);
            u.y = pack_pair(w.y, b.y);
            u.z = pack_pair(w.z, b.z);
            u.w = pack_pair(w.w, b.w);
            wb[q] = u;
        }
    }

    float s = __ldg(x);                                    // first element of row 0

#pragma unroll 1
    for (int row = 0; row < ROWS; ++row) {
        // first element of the next row, asked for early
        const float s_next = __ldg(x + (size_t)(row < ROWS - 1 ? row + 1 : row) * ROW_LEN);

        __half2 h[2 * QUADS];                              // 32 elements of this thread
        float s1 = 0.f, s2 = 0.f;
#pragma unroll
        for (int k = 0; k < CHUNKS; ++k) {
            const int c = row * CHUNKS + k;
            const int slot = c % SLOTS;
            mbar_wait(bar_base + 8u * slot, (unsigned)(c / SLOTS) & 1u);
            const float4* sp = reinterpret_cast<const float4*>(ring + (size_t)slot * CHUNK_BYTES);
#pragma unroll
            for (int j = 0; j < PER; ++j) {
                const float4 v = sp[j * THREADS + tid];
                const float a = v.x - s, b = v.y - s, d = v.z - s, e = v.w - s;
                s1 += (a + b) + (d + e);
                s2 += (a * a + b * b) + (d * d + e * e);
                const int i = k * PER + j;
                h[2 * i] = __floats2half2_rn(a, b);
                h[2 * i + 1] = __floats2half2_rn(d, e);
            }
            __syncthreads();                               // everyone has read this slot
            const int cn = c + SLOTS;                      // the next chunk of the same slot
            if (tid == 0 && cn < TOTAL) {
                asm volatile("fence.proxy.async;" ::: "memory");
                bulk_load(ring_base + slot * CHUNK_BYTES,
                          xs + (size_t)(cn >> 2) * ROW_LEN + (cn & 3) * CHUNK,
                          bar_base + 8u * slot, policy);
            }
        }

        s1 = warp_sum(s1);
        s2 = warp_sum(s2);
        if (lane == 0) red[warp] = make_float2(s1, s2);
        __syncthreads();

        // warp 0: publish (mean - s, M2), wait for the other blocks, merge the 128 pairs
        if (warp == 0) {
            unsigned* counter = counters + row * COUNTER_STRIDE;
            float2* row_pairs = pairs + row * BLOCKS;
            const float2 r = red[lane];
            const float t1 = warp_sum(r.x);
            const float t2 = warp_sum(r.y);
            if (lane == 0) {
                const float dm = t1 * (1.0f / SLICE);
                __stcg(row_pairs + blk, make_float2(dm, t2 - t1 * dm));
                asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(counter) : "memory");
            }
            __syncwarp();
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
            if (lane == 0)
                stat = make_float2(dmean, rsqrtf(all * (1.0f / ROW_LEN) + 1e-5f));
        }
        __syncthreads();
        const float dmean = stat.x;                        // mean - s
        const float rstd = stat.y;

        float4* orow = reinterpret_cast<float4*>(os + (size_t)row * ROW_LEN);
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            // chunk k = i / 2, part j = i % 2: k * 2048 + j * 1024 + tid == i * 1024 + tid
            const int q = i * THREADS + tid;
            const uint4 u = wb[q];
            const float2 lo = __half22float2(h[2 * i]);
            const float2 hi = __half22float2(h[2 * i + 1]);
            const float2 p0 = unpack_pair(u.x);
            const float2 p1 = unpack_pair(u.y);
            const float2 p2 = unpack_pair(u.z);
            const float2 p3 = unpack_pair(u.w);
            float4 o;
            o.x = fmaf((lo.x - dmean) * rstd, p0.x, p0.y);
            o.y = fmaf((lo.y - dmean) * rstd, p1.x, p1.y);
            o.z = fmaf((hi.x - dmean) * rstd, p2.x, p2.y);
            o.w = fmaf((hi.y - dmean) * rstd, p3.x, p3.y);
            __stcs(orow + q, o);
        }
        s = s_next;
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
