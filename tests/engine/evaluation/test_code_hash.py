"""Machine code is recognised whatever comments and line numbers its source had, and told apart where it differs."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from engine.evaluation.build import build
from engine.evaluation.code_hash import code_hash

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


@pytest.mark.parametrize("form", ["cpp", pytest.param("cu", marks=NVCC)])
def test_what_is_compiled_counts_not_how_it_is_written(form: str, tmp_path: Path) -> None:
    source = {"cpp": CPP, "cu": CUDA}[form].replace("FACTOR", "0.5f").replace("BLOCK", "256")

    def digest(text: str) -> str:
        library, report = asyncio.run(build(text, form, SIGNATURE[form], "sm_90a", tmp_path))  # type: ignore[arg-type]
        assert library is not None, report.log
        assert report.code == code_hash(library) != ""
        return report.code

    same = digest(source)
    assert digest("// Another idea entirely.\n\n\n" + source.replace("0.5f", "(1.0f / 2)")) == same
    assert digest(source.replace("0.5f", "0.25f")) != same
    if form == "cu":
        assert digest(source.replace("256", "128")) != same, "the same instructions, launched otherwise"


def test_what_is_no_library_has_no_digest(tmp_path: Path) -> None:
    file = tmp_path / "kernel.so"
    for content in (b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 100, b"#!/bin/sh\n"):
        file.write_bytes(content)
        assert code_hash(file) == ""
