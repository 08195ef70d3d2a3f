// Half precision as the compiler's own type.
#pragma once
#include "emulator.h"
struct __half { _Float16 value; };
struct __half2 { __half x, y; };
inline float __half2float(__half a) { return float(a.value); }
inline __half __float2half(float a) { return {_Float16(a)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {__float2half(a), __float2half(b)}; }
