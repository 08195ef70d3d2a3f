// The fibers of emulator.h, a library that all emulated kernels of a process share.
#include "emulator.h"
#include "cuda_pipeline.h"
#include <deque>
#include <memory>
#include <ucontext.h>
#include <vector>

namespace emulator {

constexpr int most_threads = 1024, stack_bytes = 96 * 1024, scratch_bytes = 1 << 15;
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    State state = State::done;
    int barrier = 0, threads = 0;  // of the named barrier at which it waits
};
struct Copy {
    void* to;
    unsigned char bytes[16];
    size_t size;
};
int current = 0;
dim3 block_index, grid_size;
alignas(128) unsigned char dynamic[256 * 1024];
static std::vector<Fiber> fibers(most_threads);
static ucontext_t scheduler;
static int count = 0;
static void (*body)(const void*);
static const void* arguments;
static std::vector<std::vector<unsigned char>> scratch(most_threads / 32, std::vector<unsigned char>(scratch_bytes));
static std::vector<std::deque<std::vector<Copy>>> groups(most_threads);
static std::vector<std::vector<Copy>> open(most_threads);

unsigned char* warp_scratch() { return scratch[current / 32].data(); }
void wait(State state) {
    fibers[current].state = state;
    swapcontext(&fibers[current].context, &scheduler);
}
void wait_named(int barrier, int threads) {
    fibers[current].barrier = barrier;
    fibers[current].threads = threads;
    wait(State::named);
}
// Releases named barriers that all their threads have reached.
static bool release_named() {
    bool released = false;
    for (int first = 0; first < count; ++first) {
        if (fibers[first].state != State::named) continue;
        const auto here = [&](const Fiber& f) { return f.state == State::named && f.barrier == fibers[first].barrier; };
        int waiting = 0;
        for (int t = 0; t < count; ++t) waiting += here(fibers[t]);
        if (waiting < fibers[first].threads) continue;
        for (int t = count - 1; t >= first; --t)
            if (here(fibers[t])) fibers[t].state = State::ready;
        released = true;
    }
    return released;
}
static void enter() {
    body(arguments);
    fibers[current].state = State::done;
}
static void run_block() {
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
                    elsewhere += fibers[t].state == State::block || fibers[t].state == State::named;
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
        if (release_named()) continue;
        if (at_block < count) {
            fprintf(stderr, "emulator: %d of %d threads of a block wait at a barrier\n", at_block, count);
            abort();
        }
        for (int t = 0; t < count; ++t) fibers[t].state = State::ready;
    }
}
void start(long long grid, int threads, int shared, void (*kernel)(const void*), const void* captured) {
    if (threads > most_threads || shared > int(sizeof(dynamic))) abort();
    body = kernel;
    arguments = captured;
    count = threads;
    grid_size.x = unsigned(grid);
    for (long long b = 0; b < grid; ++b) {
        block_index.x = unsigned(b);
        memset(dynamic, 0xff, shared);
        run_block();
    }
}

}  // namespace emulator

void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros) {
    if ((size != 4 && size != 8 && size != 16) || reinterpret_cast<uintptr_t>(to) % size ||
        reinterpret_cast<uintptr_t>(from) % size) {
        fprintf(stderr, "emulator: an asynchronous copy of %zu bytes that are not aligned\n", size);
        abort();
    }
    emulator::Copy copy{to, {}, size};
    memcpy(copy.bytes, from, size - zeros);
    emulator::open[emulator::current].push_back(copy);
}
void __pipeline_commit() {
    auto& now = emulator::open[emulator::current];
    emulator::groups[emulator::current].push_back(std::move(now));
    now.clear();
}
void __pipeline_wait_prior(size_t left) {
    auto& waiting = emulator::groups[emulator::current];
    for (; waiting.size() > left; waiting.pop_front())
        for (const auto& copy : waiting.front()) memcpy(copy.to, copy.bytes, copy.size);
}
