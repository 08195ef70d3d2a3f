// Softmax over 4096 rows of 65536 floats: one row per block, the row held on chip in fp32
// (12 chunks of 16 KiB in shared memory through cp.async.bulk, 4 float4 per thread in registers).
#include <stddef.h>
#include <stdint.h>
#include <cuda_runtime.h>

namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;                 // 32
constexpr int kRowVec = 65536 / 4;                    // 16384 float4 in a row
constexpr int kSmemChunks = 12;                       // chunks in shared memory
constexpr int kRegChunks = 4;                         // chunks in registers
constexpr int kChunkBytes = kThreads * 16;            // 1024 float4 = 16384 bytes
constexpr int kSmemBytes = kSmemChunks * kChunkBytes; // 196608 bytes
constexpr float kLog2e = 1.4426950408889634f;

static_assert((kSmemChunks + kRegChunks) * kThreads == kRowVec, "a row is 16 chunks");
static_assert(kWarps == 32, "one partial per lane");

__device__ __forceinline__ uint32_t smem_addr(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ float ex2(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t"
            "}"
            : "=r"(done)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (!done);
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

__device__ __forceinline__ float max4(float4 v) {
    return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
}

__device__ __forceinline__ float4 exp4(float4 v, float nml) {
    float4 e;
    e.x = ex2(fmaf(v.x, kLog2e, nml));
    e.y = ex2(fmaf(v.y, kLog2e, nml));
    e.z = ex2(fmaf(v.z, kLog2e, nml));
    e.w = ex2(fmaf(v.w, kLog2e, nml));
    return e;
}

__global__ void __launch_bounds__(kThreads, 1)
softmax_row_kernel(const float* __restrict__ x, float* __restrict__ out) {
    extern __shared__ __align__(128) unsigned char smem_raw[];
    __shared__ __align__(8) uint64_t bars[kSmemChunks];
    __shared__ float part_max[32];
    __shared__ float part_sum[32];

    float4* buf = reinterpret_cast<float4*>(smem_raw);  // [12][1024]
    const int t = threadIdx.x;
    const int lane = t & 31;
    const int warp = t >> 5;
    const float4* xr = reinterpret_cast<const float4*>(x) + (size_t)blockIdx.x * kRowVec;
    float4* outr = reinterpret_cast<float4*>(out) + (size_t)blockIdx.x * kRowVec;

    if (t == 0) {
        for (int i = 0; i < kSmemChunks; ++i) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                         :: "r"(smem_addr(&bars[i])), "r"(1u) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        for (int i = 0; i < kSmemChunks; ++i) {
            const uint32_t bar = smem_addr(&bars[i]);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                         :: "r"(bar), "r"((uint32_t)kChunkBytes) : "memory");
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                :: "r"(smem_addr(buf + i * kThreads)), "l"(xr + i * kThreads),
                   "r"((uint32_t)kChunkBytes), "r"(bar)
                : "memory");
        }
    }

    // Chunks 12 to 15 of the row: registers.
    float4 v[kRegChunks];
#pragma unroll
    for (int j = 0; j < kRegChunks; ++j) v[j] = __ldcs(xr + (kSmemChunks + j) * kThreads + t);

    __syncthreads();  // the mbarriers are initialised for every thread

    // Sweep 1: maximum.
    float m = __int_as_float(0xff800000);  // -infinity
#pragma unroll 4
    for (int i = 0; i < kSmemChunks; ++i) {
        mbar_wait(smem_addr(&bars[i]), 0u);
        m = fmaxf(m, max4(buf[i * kThreads + t]));
    }
#pragma unroll
    for (int j = 0; j < kRegChunks; ++j) m = fmaxf(m, max4(v[j]));

    m = warp_max(m);
    if (lane == 0) part_max[warp] = m;
    __syncthreads();
    m = warp_max(part_max[lane]);

    // Sweep 2: exponentials in place (each thread touches only its own elements), and their sum.
    const float nml = -m * kLog2e;
    float s = 0.0f;
#pragma unroll
    for (int j = 0; j < kRegChunks; ++j) {
        v[j] = exp4(v[j], nml);
        s += (v[j].x + v[j].y) + (v[j].z + v[j].w);
    }
#pragma unroll 4
    for (int i = 0; i < kSmemChunks; ++i) {
        const float4 e = exp4(buf[i * kThreads + t], nml);
        buf[i * kThreads + t] = e;
        s += (e.x + e.y) + (e.z + e.w);
    }

    s = warp_sum(s);
    if (lane == 0) part_sum[warp] = s;
    __syncthreads();
    s = warp_sum(part_sum[lane]);
    const float inv = 1.0f / s;

    // Sweep 3: scale and store.
#pragma unroll
    for (int j = 0; j < kRegChunks; ++j) {
        const float4 r = make_float4(v[j].x * inv, v[j].y * inv, v[j].z * inv, v[j].w * inv);
        __stcs(outr + (kSmemChunks + j) * kThreads + t, r);
    }
#pragma unroll 4
    for (int i = 0; i < kSmemChunks; ++i) {
        const float4 e = buf[i * kThreads + t];
        const float4 r = make_float4(e.x * inv, e.y * inv, e.z * inv, e.w * inv);
        __stcs(outr + i * kThreads + t, r);
    }
}

}  // namespace

extern "C" int launch(const float* x, float* out, void* workspace, cudaStream_t stream) {
    (void)workspace;
    cudaError_t err = cudaFuncSetAttribute(softmax_row_kernel,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes);
    if (err != cudaSuccess) return (int)err;
    softmax_row_kernel<<<4096, kThreads, kSmemBytes, stream>>>(x, out);
    return (int)cudaGetLastError();
}
