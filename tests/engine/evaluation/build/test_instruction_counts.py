"""The instructions of a build are counted by kind."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from engine.evaluation.build.compilers import build
from engine.system.tool_paths import NoTool, find_cuda_tool

CPP = """
#include <cmath>
extern "C" int launch(const float* x, float* out, void*) {
    for (int i = 0; i < 1000; ++i) out[i] = std::tgamma(x[i]) + x[i] * 2.0f;
    return 0;
}
"""
CUDA = """
__global__ void small(float* out) { out[threadIdx.x] = 1.0f; }
__global__ void scaled(const float4* x, float4* out) {
    __shared__ float4 tile[256];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float4 v = tile[255 - threadIdx.x];
    v.x = __expf(v.x);
    out[threadIdx.x] = v;
}
extern "C" int launch(const float* x, float* out, void*, cudaStream_t stream) {
    small<<<1, 256, 0, stream>>>(out);
    scaled<<<1, 256, 0, stream>>>(reinterpret_cast<const float4*>(x), reinterpret_cast<float4*>(out));
    return 0;
}
"""


def has_nvdisasm() -> bool:
    try:
        return bool(find_cuda_tool("nvdisasm"))
    except NoTool:
        return False


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
def test_of_a_cpp_kernel(tmp_path: Path) -> None:
    _, report = asyncio.run(build(CPP, "cpp", "", "", tmp_path))
    counts = report.instructions
    assert counts["instructions"] > 20 and counts["calls of tgammaf"] == 1
    assert any("floating-point" in kind or "multiply-adds" in kind or "vector" in kind for kind in counts)


@pytest.mark.skipif(shutil.which("nvcc") is None or not has_nvdisasm(), reason="needs nvcc and nvdisasm")
def test_of_the_largest_cuda_kernel(tmp_path: Path) -> None:
    library, report = asyncio.run(build(CUDA, "cu", "", "sm_90a", tmp_path))
    counts = report.instructions
    assert counts["global loads of 128 bits"] == counts["global stores of 128 bits"] == 1
    assert counts["shared memory accesses"] == 2 and counts["special functions (exp, log, rsqrt)"] == 1
    assert "global stores of 32 bits" not in counts, "the smaller kernel does not count"
    assert library is not None and list(library.parent.glob("*.cubin")) == []
    again, cached = asyncio.run(build(CUDA, "cu", "", "sm_90a", tmp_path))
    assert again == library and cached.cached and cached.instructions == counts
