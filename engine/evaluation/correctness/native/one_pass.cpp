// Compare outputs, and mix inputs, in one pass over the arrays. The folder's __init__.py builds this file.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

struct Fp16 {
    using Wide = float;
    _Float16 bits;
    float wide() const { return static_cast<float>(bits); }
};

struct Bf16 {
    using Wide = float;
    uint16_t bits;
    float wide() const {
        const uint32_t word = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &word, 4);
        return value;
    }
};

template <typename T>
struct Plain {
    using Wide = T;
    T bits;
    T wide() const { return bits; }
};

// result: {max |out - want|, max |out - want| / (|want| + floor), 1 if any error is not finite, else 0}
template <typename T>
static void errors(const void* outputs, const void* wanted, int64_t count, double floor, double* result) {
    using Wide = typename T::Wide;
    const T* out = static_cast<const T*>(outputs);
    const T* want = static_cast<const T*>(wanted);
    const Wide least = static_cast<Wide>(floor);
    Wide worst_absolute = 0, worst_relative = 0;
    int64_t ordered = 0;
#pragma omp parallel for simd reduction(max : worst_absolute, worst_relative) reduction(+ : ordered)
    for (int64_t i = 0; i < count; i++) {
        const Wide goal = want[i].wide();
        const Wide error = std::fabs(out[i].wide() - goal);
        const Wide relative = error / (std::fabs(goal) + least);
        worst_absolute = error > worst_absolute ? error : worst_absolute;
        worst_relative = relative > worst_relative ? relative : worst_relative;
        ordered += relative <= static_cast<Wide>(3.0e38);
    }
    result[0] = worst_absolute;
    result[1] = worst_relative;
    result[2] = ordered == count ? 0 : 1;
}

// target[i] = first * mine[i] + second * theirs[i - moved] + noise[i], where theirs and noise repeat
template <typename T>
static void mix(void* into, const void* from_mine, const void* from_theirs, const void* from_noise, int64_t count,
                int64_t moved, int64_t period, double by_first, double by_second) {
    T* __restrict target = static_cast<T*>(into);
    const T* mine = static_cast<const T*>(from_mine);
    const T* theirs = static_cast<const T*>(from_theirs);
    const T* noise = static_cast<const T*>(from_noise);
    const T first = static_cast<T>(by_first), second = static_cast<T>(by_second);
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < count; begin += period) {
        const int64_t end = std::min(begin + period, count), wraps = std::clamp(moved, begin, end);
        for (int64_t i = begin; i < wraps; i++)
            target[i] = first * mine[i] + second * theirs[i - moved + count] + noise[i - begin];
        for (int64_t i = wraps; i < end; i++)
            target[i] = first * mine[i] + second * theirs[i - moved] + noise[i - begin];
    }
}

extern "C" {
void errors_float64(const void* o, const void* w, int64_t n, double f, double* r) { errors<Plain<double>>(o, w, n, f, r); }
void errors_float32(const void* o, const void* w, int64_t n, double f, double* r) { errors<Plain<float>>(o, w, n, f, r); }
void errors_float16(const void* o, const void* w, int64_t n, double f, double* r) { errors<Fp16>(o, w, n, f, r); }
void errors_bfloat16(const void* o, const void* w, int64_t n, double f, double* r) { errors<Bf16>(o, w, n, f, r); }
void mix_float64(void* t, const void* m, const void* o, const void* r, int64_t n, int64_t d, int64_t p, double a, double b) {
    mix<double>(t, m, o, r, n, d, p, a, b);
}
void mix_float32(void* t, const void* m, const void* o, const void* r, int64_t n, int64_t d, int64_t p, double a, double b) {
    mix<float>(t, m, o, r, n, d, p, a, b);
}
}
