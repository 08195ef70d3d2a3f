// Asynchronous copies, done when they are waited for: reading a tile too early shows NaN.
#pragma once
#include "emulator.h"
void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0);
void __pipeline_commit();
void __pipeline_wait_prior(size_t left);
