"""Softmax kernels for the tests, honest and dishonest, in both C languages."""

from __future__ import annotations

_CPP = """
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
{outside}
extern "C" int launch(const float* x, float* out, void* workspace) {{
    constexpr long long columns = x_dim1;
    {before}
    #pragma omp parallel for
    for (long long row = 0; row < x_dim0 - {skipped}; row++) {{
        const float* in = x + row * columns;
        float* to = out + row * columns;
        float most = -INFINITY, sum = 0;
        for (long long i = 0; i < columns; i++) most = std::fmax(most, in[i]);
        for (long long i = 0; i < columns; i++) sum += to[i] = std::exp(in[i] - most);
        for (long long i = 0; i < columns; i++) to[i] /= sum;
    }}
    {after}
    return 0;
}}
"""

_CU = """
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
{outside}
__global__ void rows(const float* x, float* out) {{
    constexpr long long columns = x_dim1;
    {device}
    __shared__ float partial[256];
    const float* in = x + blockIdx.x * columns;
    float* to = out + blockIdx.x * columns;
    float most = -INFINITY;
    for (long long i = threadIdx.x; i < columns; i += 256) most = fmaxf(most, in[i]);
    partial[threadIdx.x] = most;
    __syncthreads();
    for (int half = 128; half; half /= 2) {{
        if (threadIdx.x < half) partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + half]);
        __syncthreads();
    }}
    most = partial[0];
    __syncthreads();
    float sum = 0;
    for (long long i = threadIdx.x; i < columns; i += 256) sum += to[i] = expf(in[i] - most);
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half; half /= 2) {{
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }}
    for (long long i = threadIdx.x; i < columns; i += 256) to[i] /= partial[0];
}}
extern "C" int launch(const float* x, float* out, void* workspace, cudaStream_t stream) {{
    {before}
    rows<<<x_dim0 - {skipped}, 256, 0, stream>>>(x, out);
    {after}
    return 0;
}}
"""


def softmax(
    language: str, *, before: str = "", after: str = "", outside: str = "", device: str = "", skipped: int = 0
) -> str:
    """Return a correct softmax with extra code: in ``launch`` before and after the work, at file level, in the CUDA
    kernel."""
    text = _CU if language == "cu" else _CPP
    return text.format(before=before, after=after, outside=outside, device=device, skipped=skipped)
