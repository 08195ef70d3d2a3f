// One pass over two fp32 arrays: the largest absolute and relative error. Built by engine/evaluation/native.py.
#include <cmath>
#include <cstdint>

// result: {max |out - want|, max |out - want| / (|want| + floor), 1 if anything compared as not a number}
extern "C" void compare_fp32(const float* out, const float* want, int64_t count, float floor, double* result) {
    float worst_absolute = 0, worst_relative = 0;
    int64_t ordered = 0;
#pragma omp parallel for simd reduction(max : worst_absolute, worst_relative) reduction(+ : ordered)
    for (int64_t i = 0; i < count; i++) {
        const float error = std::fabs(out[i] - want[i]);
        const float relative = error / (std::fabs(want[i]) + floor);
        worst_absolute = error > worst_absolute ? error : worst_absolute;
        worst_relative = relative > worst_relative ? relative : worst_relative;
        ordered += relative <= 3.0e38f;
    }
    result[0] = worst_absolute;
    result[1] = worst_relative;
    result[2] = ordered == count ? 0 : 1;
}
