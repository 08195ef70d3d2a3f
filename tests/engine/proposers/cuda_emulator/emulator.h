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
#include <functional>
#include <memory>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static
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

constexpr int most_threads = 1024, stack_bytes = 96 * 1024, scratch_bytes = 1 << 15;
enum class State { ready, warp, block, done };
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    State state = State::done;
};
inline std::vector<Fiber> fibers(most_threads);
inline ucontext_t scheduler;
inline int current = 0, count = 0;
inline dim3 block_index, grid_size;
inline std::function<void()> body;
alignas(128) inline unsigned char dynamic[256 * 1024];
inline std::vector<std::vector<unsigned char>> scratch(most_threads / 32, std::vector<unsigned char>(scratch_bytes));

inline void wait(State state) {
    fibers[current].state = state;
    swapcontext(&fibers[current].context, &scheduler);
}
inline void enter() {
    body();
    fibers[current].state = State::done;
}
inline void run_block() {
    for (int t = 0; t < count; ++t) {
        Fiber& fiber = fibers[t];
        if (!fiber.stack) fiber.stack.reset(new char[stack_bytes]);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = stack_bytes;
        fiber.context.uc_link = &scheduler;
        fiber.state = State::ready;
        makecontext(&fiber.context, enter, 0);
    }
    for (;;) {
        int live = 0, at_block = 0;
        for (int warp = 0; warp < count; warp += 32) {
            const int end = min(warp + 32, count);
            for (bool again = true; again;) {
                int waiting = 0, alive = 0, elsewhere = 0;
                for (current = warp; current < end; ++current)
                    if (fibers[current].state == State::ready) swapcontext(&scheduler, &fibers[current].context);
                for (int t = warp; t < end; ++t) {
                    alive += fibers[t].state != State::done;
                    waiting += fibers[t].state == State::warp;
                    elsewhere += fibers[t].state == State::block;
                }
                again = waiting > 0;
                if (waiting > 0 && waiting < alive) {
                    fprintf(stderr, "emulator: %d of %d threads of a warp wait at a barrier\n", waiting, alive);
                    abort();
                }
                for (int t = warp; again && t < end; ++t)
                    if (fibers[t].state == State::warp) fibers[t].state = State::ready;
            }
            for (int t = warp; t < end; ++t) {
                live += fibers[t].state != State::done;
                at_block += fibers[t].state == State::block;
            }
        }
        if (live == 0) return;
        if (at_block < count) {
            fprintf(stderr, "emulator: %d of %d threads of a block wait at a barrier\n", at_block, count);
            abort();
        }
        for (int t = 0; t < count; ++t) fibers[t].state = State::ready;
    }
}
inline void launch(long long grid, int threads, int shared, void*, std::function<void()> kernel) {
    if (threads > most_threads || shared > int(sizeof(dynamic))) abort();
    body = std::move(kernel);
    count = threads;
    grid_size.x = unsigned(grid);
    for (long long b = 0; b < grid; ++b) {
        block_index.x = unsigned(b);
        memset(dynamic, 0xff, shared);
        run_block();
    }
}
inline dim3 thread_index() { return {unsigned(current), 0, 0}; }
inline unsigned char* warp_scratch() { return scratch[current / 32].data(); }
inline int lane() { return current % 32; }

}  // namespace emulator

#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index)
#define gridDim (emulator::grid_size)
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
