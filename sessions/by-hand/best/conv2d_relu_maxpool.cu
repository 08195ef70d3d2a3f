#include <cuda_fp16.h>
#include <cuda_bf16.h>

// Each of the two consumer warpgroups streams down its own run of pooled rows. One M=64 wgmma tile is one conv
// row (m = x, 55 of 64 used). Round i computes the conv rows 2p+1 and 2p+2 of pooled row p; conv row 2p is the
// carry of the round before. Vertical pooling is done in registers (bf16x2), the horizontal one goes through a
// small staging buffer, in pieces placed between the wgmma groups of the NEXT round, so it is hidden whatever the
// depth of the wgmma queue is. Two producer warpgroups convert fp32 rows to fp16 space-to-depth, one ring each.
// The weights are fetched to registers at once and reordered through shared memory without bank conflicts.

namespace {

constexpr int PITCH = 57;                          // positions of one super row
constexpr int SLOT = 2 * PITCH;                    // positions of one row-pair slot
constexpr int NSLOT = 5;
constexpr int NPOS = 584;                          // plane pitch in positions (570 used, reads reach 578)
constexpr int RING_BYTES = 6 * NPOS * 16;          // 56064
constexpr int W_BYTES = 54 * 96 * 16;              // 82944
constexpr int SP = 72;                             // staging words per filter pair, 8 mod 32
constexpr int STG_BYTES = 48 * SP * 4;             // 13824 per consumer warpgroup
constexpr int WCHUNK4 = 2178;                      // float4 of 24 filters
constexpr int SCRATCH_BYTES = WCHUNK4 * 16;        // 34848: raw weights of 24 filters, later the two staging buffers
constexpr int OFF_W = 0;
constexpr int OFF_RING = W_BYTES;                  // 82944
constexpr int OFF_STG = OFF_RING + 2 * RING_BYTES; // 195072
constexpr int OFF_BIAS = OFF_STG + SCRATCH_BYTES;  // 229920
constexpr int OFF_BAR = OFF_BIAS + 384;            // 230304
constexpr int SMEM_BYTES = OFF_BAR + 2 * 80;       // 230464
constexpr int GRID = 132;
constexpr int ROWS = 2700;                         // pooled rows, flattened: 27 * img + p

static_assert(SMEM_BYTES <= 232448, "shared memory");
static_assert(2 * STG_BYTES <= SCRATCH_BYTES, "staging");
static_assert(OFF_STG % 16 == 0 && OFF_BIAS % 16 == 0 && OFF_BAR % 8 == 0, "alignment");

__device__ __forceinline__ uint32_t smem_u32(const void* p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void mbar_arrive(uint32_t bar) {
    asm volatile("{\n.reg .b64 st;\nmbarrier.arrive.shared::cta.b64 st, [%0];\n}\n" ::"r"(bar) : "memory");
}

__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}\n"
            : "=r"(done)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (!done);
}

__device__ __forceinline__ void bar_consumers() {
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

__device__ __forceinline__ void bar_group(int id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

__device__ __forceinline__ void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define ACC4(d, i) "+f"((d)[(i)]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define ACC8(d, i) ACC4(d, i), ACC4(d, (i) + 4)

// Descriptors: low word = start address / 16 | LBO / 16 << 16, high word = SBO / 16 = 8 (no swizzle).
__device__ __forceinline__ void wgmma_n96(float (&d)[48], uint32_t a, uint32_t b, int acc) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 da, db;\nsetp.ne.b32 p, %50, 0;\n"
        "mov.b64 da, {%48, %51};\n"
        "mov.b64 db, {%49, %51};\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
        "da, db, p, 1, 1, 0, 0;\n}\n"
        : ACC8(d, 0), ACC8(d, 8), ACC8(d, 16), ACC8(d, 24), ACC8(d, 32), ACC8(d, 40)
        : "r"(a), "r"(b), "r"(acc), "r"(8));
}

template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int N>
__device__ __forceinline__ void pinu(uint32_t (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

__device__ __forceinline__ void wg_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wg_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

__device__ __forceinline__ uint32_t pack_bf16(float a, float b) {
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<uint32_t*>(&v);
}

__device__ __forceinline__ uint32_t pack_f16(float a, float b) {
    __half2 v = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t*>(&v);
}

__device__ __forceinline__ uint32_t max_bf16(uint32_t a, uint32_t b) {
    __nv_bfloat162 v = __hmax2(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b));
    return *reinterpret_cast<uint32_t*>(&v);
}

// run of pooled rows of warpgroup c of CTA b
__device__ __forceinline__ void my_run(int b, int c, int& s, int& e) {
    const int r0 = ROWS * b / GRID;
    const int r1 = ROWS * (b + 1) / GRID;
    const int mid = r0 + ((r1 - r0 + 1) >> 1);
    s = c ? mid : r0;
    e = c ? r1 : mid;
}

// horizontal pooling, in pieces
template <int J0, int J1>
__device__ __forceinline__ void stage_write(uint32_t* sw, const uint32_t (&m)[24]) {
#pragma unroll
    for (int j = J0; j < J1; ++j) {
        sw[4 * j * SP] = m[2 * j];
        sw[4 * j * SP + 8] = m[2 * j + 1];
    }
}

template <int K0>
__device__ __forceinline__ void stage_read(const uint32_t* sr, const float* sb, uint2 (&v)[3], float2 (&bv)[3]) {
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        v[k] = *reinterpret_cast<const uint2*>(sr + (K0 + k) * SP);
        bv[k] = *reinterpret_cast<const float2*>(sb + 2 * (K0 + k));
    }
}

template <int K0>
__device__ __forceinline__ void pool_store(float* ob, uint32_t ok, const uint2 (&v)[3], const float2 (&bv)[3]) {
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        const uint32_t nx = __shfl_down_sync(0xffffffffu, v[k].x, 1);      // x = 2 px + 2
        const uint32_t m = max_bf16(max_bf16(v[k].x, v[k].y), nx);
        const float lo = fmaxf(__uint_as_float(m << 16) + bv[k].x, 0.f);
        const float hi = fmaxf(__uint_as_float(m & 0xffff0000u) + bv[k].y, 0.f);
        float* o = ob + 2 * (K0 + k) * 729;
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n"
            "@p st.global.f32 [%0], %1;\n"
            "@p st.global.f32 [%0+2916], %2;\n}\n" ::"l"(o), "f"(lo), "f"(hi), "r"(ok)
            : "memory");
    }
}

__global__ void __launch_bounds__(512, 1)
conv_pool_kernel(const float* __restrict__ x, const float* __restrict__ wgt, const float* __restrict__ bias,
                 float* __restrict__ out) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int wg = __shfl_sync(0xffffffffu, tid >> 7, 0);
    const int w = __shfl_sync(0xffffffffu, (tid >> 5) & 3, 0);
    const int c = wg & 1;
    // per ring: full[5] at 0, empty[5] at 40
    if (tid == 0) {
        const uint32_t b0 = smem_u32(smem + OFF_BAR);
        for (int r = 0; r < 2; ++r) {
            for (int s = 0; s < NSLOT; ++s) {
                mbar_init(b0 + 80 * r + 8 * s, 128);
                mbar_init(b0 + 80 * r + 40 + 8 * s, 4);
            }
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    const uint32_t full = smem_u32(smem + OFF_BAR) + 80 * c;
    const uint32_t empty = full + 40;
    int cur, end;
    my_run(blockIdx.x, c, cur, end);

    if (wg < 2) {
        // ---------------- producers: fp32 row pairs -> fp16 space-to-depth ----------------
        asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
        // warp w: super row (w & 1) of the pair, row half (w >> 1) of the super row; all three channels
        const int rr = 4 * (w & 1) + 2 * (w >> 1);
        unsigned char* dst0 = smem + OFF_RING + c * RING_BYTES + ((w >> 1) * NPOS + (w & 1) * PITCH + lane) * 16;
        const int src_lane = (lane + 31) & 31;
        int slot = 0;
        uint32_t ph = 0;
#pragma unroll 1
        while (cur < end) {
            const int img = cur / 27;
            const int p0 = cur - img * 27;
            const int n = min(end - cur, 27 - p0);
            const float* xi = x + (size_t)img * (3 * 224 * 224);
#pragma unroll 1
            for (int i = 0; i < n + 2; ++i) {
                const int r = 8 * (p0 + i) - 2 + rr;     // even, so r and r+1 are both valid or both not
                float4 v[3][2][2];
#pragma unroll
                for (int ch = 0; ch < 3; ++ch)
#pragma unroll
                    for (int a = 0; a < 2; ++a)
                        v[ch][a][0] = v[ch][a][1] = make_float4(0.f, 0.f, 0.f, 0.f);
                if (r >= 0 && r < 224) {
                    const float4* gp = reinterpret_cast<const float4*>(xi + r * 224) + lane;
#pragma unroll
                    for (int ch = 0; ch < 3; ++ch)
#pragma unroll
                        for (int a = 0; a < 2; ++a) {
                            v[ch][a][0] = __ldg(gp + ch * 12544 + a * 56);
                            if (lane < 24) v[ch][a][1] = __ldg(gp + ch * 12544 + a * 56 + 32);
                        }
                }
                mbar_wait(empty + 8 * slot, ph ^ 1u);
                unsigned char* dst = dst0 + slot * (SLOT * 16);
#pragma unroll
                for (int ch = 0; ch < 3; ++ch) {
                    uint32_t l0[2], l1[2], q0[2], q1[2];
#pragma unroll
                    for (int a = 0; a < 2; ++a) {
                        const float4 f0 = v[ch][a][0];
                        const float4 f1 = v[ch][a][1];
                        const uint32_t t0 = __shfl_sync(0xffffffffu, pack_f16(f0.z, f0.w), src_lane);
                        const uint32_t t1 = __shfl_sync(0xffffffffu, pack_f16(f1.z, f1.w), src_lane);
                        l0[a] = (lane == 0) ? 0u : t0;       // columns 4X-2, 4X-1
                        l1[a] = (lane == 0) ? t0 : t1;
                        q0[a] = pack_f16(f0.x, f0.y);        // columns 4X, 4X+1
                        q1[a] = pack_f16(f1.x, f1.y);
                    }
                    unsigned char* dc = dst + ch * (2 * NPOS * 16);
                    *reinterpret_cast<uint4*>(dc) = make_uint4(l0[0], q0[0], l0[1], q0[1]);
                    if (lane < 25)
                        *reinterpret_cast<uint4*>(dc + 512) = make_uint4(l1[0], q1[0], l1[1], q1[1]);
                }
                fence_async();
                mbar_arrive(full + 8 * slot);
                if (++slot == NSLOT) {
                    slot = 0;
                    ph ^= 1u;
                }
            }
            cur += n;
        }
    } else {
        // ---------------- consumers ----------------
        asm volatile("setmaxnreg.inc.sync.aligned.u32 176;");
        const int ct = tid - 256;
        const int g = lane >> 2;
        const int t = lane & 3;
        float* sbias = reinterpret_cast<float*>(smem + OFF_BIAS);

        // weights: [tap * 6 + channel group][96][8] fp16, padded to 12 x 12 with zeros
        {
            float4 v[4][9];
            const float4* wp = reinterpret_cast<const float4*>(wgt) + ct;
#pragma unroll
            for (int q = 0; q < 4; ++q)
#pragma unroll
                for (int k = 0; k < 9; ++k) {
                    v[q][k] = make_float4(0.f, 0.f, 0.f, 0.f);
                    if (k < 8 || ct < WCHUNK4 - 2048) v[q][k] = __ldg(wp + q * WCHUNK4 + k * 256);
                }
            if (ct < 96) sbias[ct] = bias[ct];
            float4* raw4 = reinterpret_cast<float4*>(smem + OFF_STG);
            const float* raw = reinterpret_cast<const float*>(smem + OFF_STG);
#pragma unroll
            for (int q = 0; q < 4; ++q) {
#pragma unroll
                for (int k = 0; k < 9; ++k)
                    if (k < 8 || ct < WCHUNK4 - 2048) raw4[ct + k * 256] = v[q][k];
                bar_consumers();
#pragma unroll 3
                for (int mi = 0; mi < 6; ++mi) {
                    const int i = ct + mi * 256;
                    if (i < 54 * 24) {
                        const int item = i / 24;              // tap * 6 + channel group
                        const int f = i - item * 24;
                        const int tap = item / 6;
                        const int cg = item - tap * 6;
                        const int dy = tap / 3;
                        const int dx = tap - dy * 3;
                        const float* rp = raw + f * 363 + (cg >> 1) * 121 + (4 * dy + 2 * (cg & 1)) * 11 + 4 * dx;
                        const bool k3 = dx < 2;                       // kx = 11 does not exist
                        const bool y1 = !(dy == 2 && (cg & 1));       // ky = 11 does not exist
                        const float a0 = rp[0], a1 = rp[1], a2 = rp[2];
                        const float a3 = k3 ? rp[3] : 0.f;
                        const float b0 = y1 ? rp[11] : 0.f;
                        const float b1 = y1 ? rp[12] : 0.f;
                        const float b2 = y1 ? rp[13] : 0.f;
                        const float b3 = (y1 && k3) ? rp[14] : 0.f;
                        *reinterpret_cast<uint4*>(smem + OFF_W + (item * 96 + 24 * q + f) * 16) =
                            make_uint4(pack_f16(a0, a1), pack_f16(a2, a3), pack_f16(b0, b1), pack_f16(b2, b3));
                    }
                }
                if (q == 3) fence_async();
                else asm volatile("" ::: "memory");
                // every thread's own writes of all four chunks precede its fence above
                bar_consumers();
            }
        }

        const uint32_t ring_lo =
            ((smem_u32(smem + OFF_RING + c * RING_BYTES) >> 4) & 0x3FFFu) | ((uint32_t)NPOS << 16);
        const uint32_t b_lo0 = ((smem_u32(smem + OFF_W) >> 4) & 0x3FFFu) | (96u << 16);
        uint32_t* stg = reinterpret_cast<uint32_t*>(smem + OFF_STG + c * STG_BYTES);
        uint32_t* sw = stg + t * SP + 16 * w + g;             // write: filter pair 4j + t, x = 16w + g (+ 8)
        const uint32_t* sr = stg + 12 * w * SP + 2 * lane;    // read: filter pair 12w + k, x = 2 lane, 2 lane + 1
        const float* sb = sbias + 24 * w;
        const int barid = 2 + c;

        float d0[48], d1[48];
        uint32_t m[24], carry[24];
#pragma unroll
        for (int i = 0; i < 48; ++i) { d0[i] = 0.f; d1[i] = 0.f; }
#pragma unroll
        for (int i = 0; i < 24; ++i) { m[i] = 0u; carry[i] = 0u; }
        float* ob = out;
        uint32_t ok = 0u;                                     // nothing to store before the first round is done

        int s0 = 0;
        uint32_t f0 = 0;
#pragma unroll 1
        while (cur < end) {
            const int img = cur / 27;
            const int p0 = cur - img * 27;
            const int n = min(end - cur, 27 - p0);

            // carry tile: conv row 2 * p0
            {
                int s1 = s0 + 1;
                uint32_t f1 = f0;
                if (s1 == NSLOT) { s1 = 0; f1 ^= 1u; }
                mbar_wait(full + 8 * s0, f0);
                mbar_wait(full + 8 * s1, f1);
                uint32_t z;   // always 0: keeps the 27 descriptors of B from being hoisted out of the loop
                asm volatile("shr.u32 %0, %1, 16;" : "=r"(z) : "r"(s0));
                const uint32_t bl = b_lo0 + z;
                const uint32_t ra = ring_lo + (uint32_t)(s0 * SLOT);
                const uint32_t rb = ring_lo + (uint32_t)(s1 * SLOT);
                pin(d0);
                wg_fence();
#pragma unroll
                for (int s = 0; s < 27; ++s) {
                    const int dy = s / 9;
                    const uint32_t off = (uint32_t)((s / 3) % 3 + (s % 3) * 2 * NPOS);
                    const uint32_t a = (dy == 0 ? ra : dy == 1 ? ra + PITCH : rb) + off;
                    wgmma_n96(d0, a, bl + (uint32_t)(s * 192), s != 0);
                }
                wg_commit();
                wg_wait();
                pin(d0);
#pragma unroll
                for (int j = 0; j < 24; ++j) carry[j] = pack_bf16(d0[2 * j], d0[2 * j + 1]);
                pinu(carry);
            }

#pragma unroll 1
            for (int i = 0; i < n; ++i) {
                int s1 = s0 + 1;
                uint32_t f1 = f0;
                if (s1 == NSLOT) { s1 = 0; f1 ^= 1u; }
                int s2 = s1 + 1;
                uint32_t f2 = f1;
                if (s2 == NSLOT) { s2 = 0; f2 ^= 1u; }
                uint32_t z;
                asm volatile("shr.u32 %0, %1, 16;" : "=r"(z) : "r"(s0));
                const uint32_t bl = b_lo0 + z;
                const uint32_t ra = ring_lo + (uint32_t)(s0 * SLOT + PITCH);   // super row 2p+1
                const uint32_t rb = ring_lo + (uint32_t)(s1 * SLOT);           // 2p+2; 2p+3 is rb + 57
                const uint32_t rd = ring_lo + (uint32_t)(s2 * SLOT);           // 2p+4

                uint2 pv[3];
                float2 bv[3];
                pin(d0);
                pin(d1);
#pragma unroll
                for (int tap = 0; tap < 9; ++tap) {
                    const int dy = tap / 3;
                    const int dx = tap % 3;
                    if (tap == 6) mbar_wait(full + 8 * s2, f2);   // only now the third pair is needed
                    wg_fence();
#pragma unroll
                    for (int j = 0; j < 3; ++j) {
                        const int s = tap * 3 + j;
                        const uint32_t off = (uint32_t)(dx + j * 2 * NPOS);
                        const uint32_t a0 = (dy == 0 ? ra : dy == 1 ? rb : rb + PITCH) + off;
                        const uint32_t a1 = (dy == 0 ? rb : dy == 1 ? rb + PITCH : rd) + off;
                        wgmma_n96(d0, a0, bl + (uint32_t)(s * 192), s != 0);
                        wgmma_n96(d1, a1, bl + (uint32_t)(s * 192), s != 0);
                    }
                    wg_commit();
                    // pieces of the pooling of the round before, while the tensor cores work
                    if (tap == 0) {
                        bar_group(barid);      // the staging buffer has been read by all
                        stage_write<0, 6>(sw, m);
                    } else if (tap == 1) {
                        stage_write<6, 12>(sw, m);
                    } else if (tap == 2) {
                        bar_group(barid);      // the staging buffer is written
                        stage_read<0>(sr, sb, pv, bv);
                    } else if (tap == 3) {
                        pool_store<0>(ob, ok, pv, bv);
                        stage_read<3>(sr, sb, pv, bv);
                    } else if (tap == 4) {
                        pool_store<3>(ob, ok, pv, bv);
                        stage_read<6>(sr, sb, pv, bv);
                    } else if (tap == 5) {
                        pool_store<6>(ob, ok, pv, bv);
                        stage_read<9>(sr, sb, pv, bv);
                    } else if (tap == 6) {
                        pool_store<9>(ob, ok, pv, bv);
                    }
                }
                wg_wait();
                pin(d0);
                pin(d1);
                __syncwarp();
                if (lane == 0) mbar_arrive(empty + 8 * s0);
#pragma unroll
                for (int j = 0; j < 24; ++j) {
                    const uint32_t lower = pack_bf16(d1[2 * j], d1[2 * j + 1]);
                    m[j] = max_bf16(carry[j], max_bf16(pack_bf16(d0[2 * j], d0[2 * j + 1]), lower));
                    carry[j] = lower;
                }
                pinu(m);
                pinu(carry);
                ob = out + ((size_t)img * 96 + 24 * w) * 729 + (p0 + i) * 27 + lane;
                ok = lane < 27 ? 1u : 0u;
                s0 = s1;
                f0 = f1;
            }

            // the last two pairs of the segment
            __syncwarp();
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                if (lane == 0) mbar_arrive(empty + 8 * s0);
                if (++s0 == NSLOT) {
                    s0 = 0;
                    f0 ^= 1u;
                }
            }
            cur += n;
        }

        // pooling of the last round
        {
            uint2 pv[3];
            float2 bv[3];
            bar_group(barid);
            stage_write<0, 12>(sw, m);
            bar_group(barid);
            stage_read<0>(sr, sb, pv, bv);
            pool_store<0>(ob, ok, pv, bv);
            stage_read<3>(sr, sb, pv, bv);
            pool_store<3>(ob, ok, pv, bv);
            stage_read<6>(sr, sb, pv, bv);
            pool_store<6>(ob, ok, pv, bv);
            stage_read<9>(sr, sb, pv, bv);
            pool_store<9>(ob, ok, pv, bv);
        }
    }
}

}  // namespace

extern "C" int launch(const float* x, const float* conv_weight, const float* conv_bias, float* out, void* workspace,
                      cudaStream_t stream) {
    (void)workspace;
    cudaFuncSetAttribute(conv_pool_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    conv_pool_kernel<<<GRID, 512, SMEM_BYTES, stream>>>(x, conv_weight, conv_bias, out);
    return (int)cudaGetLastError();
}
