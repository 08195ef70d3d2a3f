#include <cuda_fp16.h>

namespace k9 {

constexpr int kUnits = 700;              // 100 images x 7 bands of 4 pooled rows
constexpr int kPitch = 57;               // positions per space-to-depth row
constexpr int kImgPos = 3256;            // 57 * 57 = 3249 positions, padded
constexpr int kPos = 632;                // positions per stage and channel group
constexpr int kSPitch = 520;             // halves per staged filter: 9 x 56, then dump slots
constexpr int kWBytes = 54 * 96 * 16;            // 82944
constexpr int kStage = 6 * kPos * 16;            // 60672
constexpr int kSBytes = 24 * kSPitch * 2;        // 24960
constexpr int kOffS = kWBytes + 2 * kStage;      // 204288
constexpr int kOffBias = kOffS + kSBytes;        // 229248
constexpr int kOffBar = kOffBias + 384;          // 229632
constexpr int kSmem = kOffBar + 64;              // 229696
constexpr int kThreads = 288;            // 2 consumer warpgroups, then 1 producer warp

#define ACC8(i) "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), \
                "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])

// d[64 x 96] += A[64 x 16] * B[16 x 96]
__device__ __forceinline__ void wgmma96(float (&d)[48], uint64_t da, uint64_t db)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, "
        "%48, %49, p, 1, 1, 0, 0;\n}\n"
        : ACC8(0), ACC8(8), ACC8(16), ACC8(24), ACC8(32), ACC8(40)
        : "l"(da), "l"(db), "r"(1));
}

__device__ __forceinline__ void keep(float (&d)[48])
{
#pragma unroll
    for (int i = 0; i < 48; ++i) asm volatile("" : "+f"(d[i]) : : "memory");
}

// no swizzle, K-major: LBO between core matrices along K, SBO along M or N
__device__ __forceinline__ uint64_t make_desc(uint32_t addr, uint32_t lbo, uint32_t sbo)
{
    return (uint64_t)((addr & 0x3FFFFu) >> 4) | ((uint64_t)(lbo >> 4) << 16) | ((uint64_t)(sbo >> 4) << 32);
}

__device__ __forceinline__ void bar_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void bar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(bar) : "memory");
}
__device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done = 0;
    while (!done) {
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}\n"
            : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    }
}
__device__ __forceinline__ void bulk_copy(uint32_t dst, const void* src, uint32_t bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        : : "r"(dst), "l"(__cvta_generic_to_global(src)), "r"(bytes), "r"(bar) : "memory");
}
__device__ __forceinline__ void consumer_sync()
{
    asm volatile("bar.sync 1, 256;" : : : "memory");
}

__device__ __forceinline__ uint32_t pack2(float a, float b)
{
    __half2 h = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t*>(&h);
}

// grid (13, 601): y < 600 converts (image, channel group), y == 600 packs the weights
__global__ void __launch_bounds__(256)
repack(const float* __restrict__ x, const float* __restrict__ w,
       uint4* __restrict__ wOut, uint4* __restrict__ xOut)
{
    const int id = blockIdx.x * 256 + threadIdx.x;
    if (blockIdx.y < 600) {
        if (id >= kImgPos) return;
        const int n = blockIdx.y / 6;
        const int g = blockIdx.y - n * 6;
        const int r = id / kPitch;
        const int col = id - r * kPitch;
        const int y0 = 4 * r - 2 + (g & 1) * 2;   // y0 and y0 + 1, both inside or both outside
        const float* p = x + (((n * 3 + (g >> 1)) * 224 + y0) * 224 + 4 * col - 2);
        float2 v0 = make_float2(0.f, 0.f), v1 = v0, v2 = v0, v3 = v0;
        const bool in = r < 57 && y0 >= 0 && y0 < 224;
        if (in && col > 0) {
            v0 = __ldg(reinterpret_cast<const float2*>(p));
            v2 = __ldg(reinterpret_cast<const float2*>(p + 224));
        }
        if (in && col < 56) {
            v1 = __ldg(reinterpret_cast<const float2*>(p + 2));
            v3 = __ldg(reinterpret_cast<const float2*>(p + 226));
        }
        xOut[(int)blockIdx.y * kImgPos + id] =
            make_uint4(pack2(v0.x, v0.y), pack2(v1.x, v1.y), pack2(v2.x, v2.y), pack2(v3.x, v3.y));
    } else {
        for (int i = id; i < 54 * 96; i += 13 * 256) {
            const int kg = i / 96;
            const int n = i - kg * 96;
            const int tap = kg / 6;
            const int g = kg - tap * 6;
            const int dy = tap / 3, dx = tap - dy * 3;
            float v[8];
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                const int ky = 4 * dy + (g & 1) * 2 + (e >> 2);
                const int kx = 4 * dx + (e & 3);
                v[e] = (ky < 11 && kx < 11) ? __ldg(w + n * 363 + (g >> 1) * 121 + ky * 11 + kx) : 0.f;
            }
            wOut[i] = make_uint4(pack2(v[0], v[1]), pack2(v[2], v[3]), pack2(v[4], v[5]), pack2(v[6], v[7]));
        }
    }
}

__global__ void __launch_bounds__(kThreads, 1)
conv_pool(const uint4* __restrict__ wIn, const uint4* __restrict__ xIn,
          const float* __restrict__ bias, float* __restrict__ out)
{
    extern __shared__ __align__(128) unsigned char smem[];
    __half* sS = reinterpret_cast<__half*>(smem + kOffS);
    float* sBias = reinterpret_cast<float*>(smem + kOffBias);
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(smem);
    const uint32_t barFull = base + kOffBar;          // 2 barriers
    const uint32_t barEmpty = base + kOffBar + 16;    // 2 barriers
    const uint32_t barW = base + kOffBar + 32;

    const int tid = threadIdx.x;
    const int warp = tid >> 5, lane = tid & 31;

    if (tid == 0) {
        bar_init(barFull, 1);
        bar_init(barFull + 8, 1);
        bar_init(barEmpty, 8);
        bar_init(barEmpty + 8, 8);
        bar_init(barW, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
        asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
    }
    if (tid < 96) sBias[tid] = bias[tid];
    __syncthreads();

    if (warp == 8) {
        if (lane == 0) {
            bar_expect(barW, kWBytes);
            bulk_copy(base, wIn, kWBytes, barW);
            int it = 0;
            for (int u = blockIdx.x; u < kUnits; u += gridDim.x, ++it) {
                const int n = u / 7;
                const int b = u - n * 7;
                const int s = it & 1;
                bar_wait(barEmpty + 8 * s, (uint32_t)(((it >> 1) & 1) ^ 1));
                // the last band ends with the image: 3256 - 6 * 456 = 520 positions
                const uint32_t bytes = (b == 6 ? 520u : (uint32_t)kPos) * 16u;
                bar_expect(barFull + 8 * s, 6u * bytes);
                for (int g = 0; g < 6; ++g)
                    bulk_copy(base + kWBytes + s * kStage + g * (kPos * 16),
                              xIn + (n * 6 + g) * kImgPos + b * 8 * kPitch, bytes, barFull + 8 * s);
            }
        }
        return;
    }

    const int wg = warp >> 2;
    const uint64_t descB = make_desc(base, 96 * 16, 128);

    // staging offsets of this thread's rows: 4 tiles x (row, row + 8)
    int off[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int p = wg * 256 + (i >> 1) * 64 + (warp & 3) * 16 + (i & 1) * 8 + (lane >> 2);
        const int row = p / kPitch;
        const int col = p - row * kPitch;
        off[i] = (row < 9 && col < 55) ? row * 56 + col : 504;
    }
    const int q2 = (lane & 3) * 2;

    bar_wait(barW, 0);

    int it = 0;
    for (int u = blockIdx.x; u < kUnits; u += gridDim.x, ++it) {
        const int n = u / 7;
        const int b = u - n * 7;
        const int st = it & 1;
        bar_wait(barFull + 8 * st, (uint32_t)((it >> 1) & 1));
        __syncwarp();

        uint32_t pk[4][24];       // bias + ReLU results: [tile][n tile * 2 + (row or row + 8)]
#pragma unroll
        for (int rd = 0; rd < 2; ++rd) {
            const uint64_t descA =
                make_desc(base + kWBytes + st * kStage + (wg * 256 + rd * 128) * 16, kPos * 16, 128);
            float acc0[48], acc1[48];
#pragma unroll
            for (int i = 0; i < 48; ++i) { acc0[i] = 0.f; acc1[i] = 0.f; }
            keep(acc0);
            keep(acc1);
            asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#pragma unroll
            for (int s = 0; s < 27; ++s) {
                const int tap = s / 3, j = s % 3;
                const int dy = tap / 3, dx = tap % 3;
                const uint64_t da = descA + (uint64_t)(dy * kPitch + dx + 2 * j * kPos);
                const uint64_t db = descB + (uint64_t)(s * 192);
                wgmma96(acc0, da, db);
                wgmma96(acc1, da + 64, db);
            }
            asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
            asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
            keep(acc0);
            keep(acc1);
            if (rd == 1) {                        // this warp has read the stage for the last time
                __syncwarp();
                if (lane == 0) bar_arrive(barEmpty + 8 * st);
                __syncwarp();
            }
#pragma unroll
            for (int j = 0; j < 12; ++j) {
                const float b0 = sBias[8 * j + q2], b1 = sBias[8 * j + q2 + 1];
                pk[2 * rd][2 * j] = pack2(fmaxf(acc0[4 * j] + b0, 0.f), fmaxf(acc0[4 * j + 1] + b1, 0.f));
                pk[2 * rd][2 * j + 1] = pack2(fmaxf(acc0[4 * j + 2] + b0, 0.f), fmaxf(acc0[4 * j + 3] + b1, 0.f));
                pk[2 * rd + 1][2 * j] = pack2(fmaxf(acc1[4 * j] + b0, 0.f), fmaxf(acc1[4 * j + 1] + b1, 0.f));
                pk[2 * rd + 1][2 * j + 1] = pack2(fmaxf(acc1[4 * j + 2] + b0, 0.f), fmaxf(acc1[4 * j + 3] + b1, 0.f));
            }
        }

        const int prows = (b == 6) ? 3 : 4;
#pragma unroll
        for (int h = 0; h < 4; ++h) {
            consumer_sync();                      // the buffer has been read by everyone
#pragma unroll
            for (int j = 0; j < 3; ++j) {
                __half* s0 = sS + (8 * j + q2) * kSPitch;
                __half* s1 = s0 + kSPitch;
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const uint32_t bits = pk[i >> 1][(3 * h + j) * 2 + (i & 1)];
                    s0[off[i]] = __ushort_as_half((unsigned short)(bits & 0xFFFFu));
                    s1[off[i]] = __ushort_as_half((unsigned short)(bits >> 16));
                }
            }
            consumer_sync();
            if (lane < 27) {
#pragma unroll
                for (int k = 0; k < 3; ++k) {
                    const int f = warp + 8 * k;
                    const __half* s = sS + f * kSPitch + 2 * lane;
                    __half m[9];
#pragma unroll
                    for (int r = 0; r < 9; ++r) {
                        const __half2 v = *reinterpret_cast<const __half2*>(s + r * 56);
                        m[r] = __hmax(__hmax(__low2half(v), __high2half(v)), s[r * 56 + 2]);
                    }
                    float* o = out + ((n * 96 + 24 * h + f) * 27 + 4 * b) * 27 + lane;
#pragma unroll
                    for (int py = 0; py < 4; ++py)
                        if (py < prows)
                            o[py * 27] = __half2float(__hmax(__hmax(m[2 * py], m[2 * py + 1]), m[2 * py + 2]));
                }
            }
            __syncwarp();
        }
    }
}

}  // namespace k9

extern "C" size_t workspace_bytes(void)
{
    return (size_t)k9::kWBytes + (size_t)600 * k9::kImgPos * 16;
}

extern "C" int launch(const float* x, const float* conv_weight, const float* conv_bias, float* out,
                      void* workspace, cudaStream_t stream)
{
    uint4* wPacked = reinterpret_cast<uint4*>(workspace);
    uint4* xPacked = reinterpret_cast<uint4*>(reinterpret_cast<unsigned char*>(workspace) + k9::kWBytes);
    k9::repack<<<dim3(13, 601), 256, 0, stream>>>(x, conv_weight, wPacked, xPacked);
    cudaFuncSetAttribute(k9::conv_pool, cudaFuncAttributeMaxDynamicSharedMemorySize, k9::kSmem);
    k9::conv_pool<<<132, k9::kThreads, k9::kSmem, stream>>>(wPacked, xPacked, conv_bias, out);
    return (int)cudaGetLastError();
}
