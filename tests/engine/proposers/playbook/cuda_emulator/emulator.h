// Runs CUDA C++ kernels on the processor, for tests of indices, tails and barriers on machines without a GPU.
//
// Every thread of a block is a fiber; blocks run one after the other. A barrier switches fibers until all threads of
// the block (or warp) have reached it. A block whose threads wait at different barriers aborts. Dynamic shared memory is
// filled with NaN before each block. Covers what the playbook emits: barriers, shuffles, asynchronous copies, wmma
// fragments and mma.sync. It says nothing of speed, races within a warp, or what only ptxas refuses.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static
#define __constant__ static
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
using std::isnan;
template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) {
    volatile float product = a * b;  // the compiler must not fuse the product into a sum
    return product;
}
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline void __stcs(T* p, T value) { *p = value; }
inline float __int_as_float(int a) { float f; memcpy(&f, &a, 4); return f; }
inline float max_of_emulated(float a, float b) { return a != a || a > b ? a : b; }
inline float min_of_emulated(float a, float b) { return a != a || a < b ? a : b; }

using cudaStream_t = void*;
using cudaError_t = int;
constexpr int cudaSuccess = 0, cudaFuncAttributeMaxDynamicSharedMemorySize = 8;
inline int cudaGetLastError() { return 0; }
template <class F> int cudaFuncSetAttribute(F, int, int) { return 0; }

namespace emulator {

// What emulator.cpp has: kernels share it, so that a compiler does not meet it in each of them.
extern int current;  // thread of the block
extern dim3 block_index, grid_size;
extern unsigned char dynamic[256 * 1024];
enum class State { ready, warp, named, block, done };
void wait(State state);
void wait_named(int barrier, int threads);
unsigned char* warp_scratch();
void start(long long grid, int threads, int shared, void (*kernel)(const void*), const void* captured);

template <class F> void start(long long grid, int threads, int shared, void*, const F& kernel) {
    start(grid, threads, shared, [](const void* f) { (*static_cast<const F*>(f))(); }, &kernel);
}
inline dim3 thread_index() { return {unsigned(current), 0, 0}; }
inline int lane() { return current % 32; }
inline size_t shared_address(const void* shared) { return size_t(static_cast<const unsigned char*>(shared) - dynamic); }

}  // namespace emulator

#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index)
#define gridDim (emulator::grid_size)
#define __cvta_generic_to_shared emulator::shared_address
inline void __syncthreads() { emulator::wait(emulator::State::block); }
inline void __syncwarp(unsigned = ~0u) { emulator::wait(emulator::State::warp); }
template <class T> T __shfl_sync(unsigned, T value, int from) {
    T* slots = reinterpret_cast<T*>(emulator::warp_scratch());
    slots[emulator::lane()] = value;
    __syncwarp();
    const T found = slots[from % 32];
    __syncwarp();
    return found;
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int by) {
    return __shfl_sync(mask, value, emulator::lane() ^ by);
}
