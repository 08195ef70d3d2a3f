// mma.sync.m16n8k16 and ldmatrix with their documented layouts (PTX ISA): what each lane holds of a, b and d.
#pragma once
#include "emulator.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"
namespace emulator {
template <class T> float half_of(unsigned bits, int which) {
    T value;
    const uint16_t part = uint16_t(bits >> (16 * which));
    memcpy(&value, &part, 2);
    if constexpr (std::is_same<T, __half>::value) return __half2float(value);
    else return __bfloat162float(value);
}
template <class T> void mma_16816(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    float* left = reinterpret_cast<float*>(warp_scratch());  // 16 x 16
    float* right = left + 256;                               // 16 x 8
    const int g = lane() / 4, p = lane() % 4 * 2;
    for (int e = 0; e < 2; ++e) {
        left[g * 16 + p + e] = half_of<T>(a[0], e);
        left[(g + 8) * 16 + p + e] = half_of<T>(a[1], e);
        left[g * 16 + p + 8 + e] = half_of<T>(a[2], e);
        left[(g + 8) * 16 + p + 8 + e] = half_of<T>(a[3], e);
        right[(p + e) * 8 + g] = half_of<T>(b[0], e);
        right[(p + 8 + e) * 8 + g] = half_of<T>(b[1], e);
    }
    __syncwarp();
    for (int h = 0; h < 2; ++h)
        for (int e = 0; e < 2; ++e)
            for (int k = 0; k < 16; ++k) d[2 * h + e] += left[(g + 8 * h) * 16 + k] * right[k * 8 + p + e];
    __syncwarp();
}
inline void mma_16816_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma_16816<__half>(d, a, b); }
inline void mma_16816_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    mma_16816<__nv_bfloat16>(d, a, b);
}
// ldmatrix.x4: lane l gives the address of row l % 8 of matrix l / 8, and gets elements 2 (l % 4) and the next of row
// l / 4 of every matrix.
inline void load_matrices(unsigned (&d)[4], unsigned from) {
    if (from % 16) {
        fprintf(stderr, "emulator: a row of ldmatrix at %u, which is not aligned\n", from);
        abort();
    }
    unsigned* rows = reinterpret_cast<unsigned*>(warp_scratch());
    const int me = lane();
    rows[me] = from;
    __syncwarp();
    for (int k = 0; k < 4; ++k) memcpy(&d[k], dynamic + rows[8 * k + me / 4] + me % 4 * 4, 4);
    __syncwarp();
}
}  // namespace emulator
