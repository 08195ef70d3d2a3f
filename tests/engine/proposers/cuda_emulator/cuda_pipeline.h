// Asynchronous copies, done when they are waited for: reading a tile too early shows NaN.
#pragma once
#include "emulator.h"
#include <deque>
namespace emulator {
struct Copy { void* to; unsigned char bytes[16]; size_t size; };
inline std::vector<std::deque<std::vector<Copy>>> groups(most_threads);
inline std::vector<std::vector<Copy>> open(most_threads);
}  // namespace emulator
inline void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0) {
    if ((size != 4 && size != 8 && size != 16) || reinterpret_cast<uintptr_t>(to) % size ||
        reinterpret_cast<uintptr_t>(from) % size) {
        fprintf(stderr, "emulator: an asynchronous copy of %zu bytes that are not aligned\n", size);
        abort();
    }
    emulator::Copy copy{to, {}, size};
    memcpy(copy.bytes, from, size - zeros);
    emulator::open[emulator::current].push_back(copy);
}
inline void __pipeline_commit() {
    auto& now = emulator::open[emulator::current];
    emulator::groups[emulator::current].push_back(std::move(now));
    now.clear();
}
inline void __pipeline_wait_prior(size_t left) {
    auto& waiting = emulator::groups[emulator::current];
    for (; waiting.size() > left; waiting.pop_front())
        for (const auto& copy : waiting.front()) memcpy(copy.to, copy.bytes, copy.size);
}
