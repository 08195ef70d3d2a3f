// bfloat16 by its bits, rounded to nearest even.
#pragma once
#include "emulator.h"
struct __nv_bfloat16 { uint16_t bits; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
inline float __bfloat162float(__nv_bfloat16 a) {
    const uint32_t bits = uint32_t(a.bits) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline __nv_bfloat16 __float2bfloat16(float a) {
    uint32_t bits;
    memcpy(&bits, &a, 4);
    if (a != a) return {0x7fc0};
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__float2bfloat16(a), __float2bfloat16(b)}; }
