"""Equal machine code is recognized despite different comments and line numbers, and different code is not."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from engine.evaluation.build.code_hash import code_hash
from engine.evaluation.build.compilers import build

NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
CPP = """\
extern "C" int launch(const float* x, float* out, void* workspace) {
    for (int i = 0; i < 1000; ++i) out[i] = FACTOR * x[i];
    return 0;
}
"""
CUDA = """\
__global__ void scale(const float* x, float* out) {
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < 1000) out[i] = FACTOR * x[i];
}
extern "C" int launch(const float* x, float* out, void* workspace, cudaStream_t stream) {
    scale<<<4, BLOCK, 0, stream>>>(x, out);
    return cudaGetLastError();
}
"""
SIGNATURE = {
    "cpp": 'extern "C" int launch(const float* x, float* out, void* workspace);\n',
    "cu": '#include <cuda_runtime.h>\nextern "C" int launch(const float*, float*, void*, cudaStream_t);\n',
}


@pytest.mark.parametrize("language", ["cpp", pytest.param("cu", marks=NVCC)])
def test_what_is_compiled_counts_not_how_it_is_written(language: str, tmp_path: Path) -> None:
    source = {"cpp": CPP, "cu": CUDA}[language].replace("FACTOR", "0.5f").replace("BLOCK", "256")

    def digest(text: str) -> str:
        library, report = asyncio.run(build(text, language, SIGNATURE[language], "sm_90a", tmp_path))  # type: ignore[arg-type]
        assert library is not None, report.log
        assert report.code == code_hash(library) != ""
        return report.code

    same = digest(source)
    assert digest("// Another idea entirely.\n\n\n" + source.replace("0.5f", "(1.0f / 2)")) == same
    assert digest(source.replace("0.5f", "0.25f")) != same
    if language == "cu":
        assert digest(source.replace("256", "128")) != same, "the same instructions, launched otherwise"


def test_what_is_no_library_has_no_digest(tmp_path: Path) -> None:
    file = tmp_path / "kernel.so"
    for content in (b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 100, b"#!/bin/sh\n"):
        file.write_bytes(content)
        assert code_hash(file) == ""
