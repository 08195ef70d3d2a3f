// Fragments of tensor cores: element e of lane l is element l * num_elements + e of the matrix, row by row. The real
// layout is unspecified, so a kernel that relies on one is wrong here too.
#pragma once
#include "emulator.h"
#if __has_include("cuda_fp16.h")
#include "cuda_fp16.h"
#include "cuda_bf16.h"
#endif
namespace nvcuda::wmma {
struct matrix_a; struct matrix_b; struct accumulator; struct row_major; struct col_major;
namespace precision { struct tf32; }
enum layout_t { mem_row_major, mem_col_major };
template <class T> struct held { using type = T; };
template <> struct held<precision::tf32> { using type = float; };
template <class Use, int M, int N, int K> struct size_of;
template <int M, int N, int K> struct size_of<matrix_a, M, N, K> { static constexpr int rows = M, cols = K; };
template <int M, int N, int K> struct size_of<matrix_b, M, N, K> { static constexpr int rows = K, cols = N; };
template <int M, int N, int K> struct size_of<accumulator, M, N, K> { static constexpr int rows = M, cols = N; };
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
    using Size = size_of<Use, M, N, K>;
    static constexpr int num_elements = Size::rows * Size::cols / 32;
    typename held<T>::type x[num_elements];
};
inline float number(float a) { return a; }
inline float number(__half a) { return __half2float(a); }
inline float number(__nv_bfloat16 a) { return __bfloat162float(a); }
inline float __float_to_tf32(float a) {
    uint32_t bits;
    memcpy(&bits, &a, 4);
    bits = (bits + 0x1000) & 0xffffe000u;
    memcpy(&a, &bits, 4);
    return a;
}
template <class F> void fill_fragment(F& f, float value) {
    for (auto& x : f.x) x = value;
}
inline void check_address(const void* p, unsigned pitch_bytes) {
    if (reinterpret_cast<uintptr_t>(p) % 32 || pitch_bytes % 16) {
        fprintf(stderr, "emulator: a fragment at an address that is no multiple of 32 bytes\n");
        abort();
    }
}
template <class Use, int M, int N, int K, class T, class Layout, class P>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f, const P* from, unsigned pitch) {
    using F = fragment<Use, M, N, K, T, Layout>;
    check_address(from, pitch * sizeof(P));
    for (int e = 0; e < F::num_elements; ++e) {
        const int at = emulator::lane() * F::num_elements + e, row = at / F::Size::cols, col = at % F::Size::cols;
        f.x[e] = std::is_same<Layout, row_major>::value ? from[row * pitch + col] : from[col * pitch + row];
    }
    __syncwarp();
}
template <class F> void store_matrix_sync(float* to, const F& f, unsigned pitch, layout_t) {
    check_address(to, pitch * 4);
    for (int e = 0; e < F::num_elements; ++e) {
        const int at = emulator::lane() * F::num_elements + e;
        to[at / F::Size::cols * pitch + at % F::Size::cols] = f.x[e];
    }
    __syncwarp();
}
template <class C, class A, class B> void mma_sync(C& out, const A& a, const B& b, const C& c) {
    float* left = reinterpret_cast<float*>(emulator::warp_scratch());
    float* right = left + 512;
    for (int e = 0; e < A::num_elements; ++e) left[emulator::lane() * A::num_elements + e] = number(a.x[e]);
    for (int e = 0; e < B::num_elements; ++e) right[emulator::lane() * B::num_elements + e] = number(b.x[e]);
    __syncwarp();
    for (int e = 0; e < C::num_elements; ++e) {
        const int at = emulator::lane() * C::num_elements + e, row = at / C::Size::cols, col = at % C::Size::cols;
        float sum = c.x[e];
        for (int k = 0; k < A::Size::cols; ++k) sum += left[row * A::Size::cols + k] * right[k * C::Size::cols + col];
        out.x[e] = sum;
    }
    __syncwarp();
}
}  // namespace nvcuda::wmma
