"""Machine code with source lines, from real compilers and disassemblers. Needs no GPU."""

from __future__ import annotations

import asyncio

import pytest

from engine.evaluation.inspect.machine_code import DoesNotBuild, MachineCode, machine_code
from engine.system.tool_paths import NoCompiler, NoTool, find_cuda_tool, find_nvcc
from tui.text.machine_code import code_lines, occupancy_lines


def has_cuda() -> bool:
    try:
        find_nvcc()
        find_cuda_tool("nvdisasm")
    except (NoCompiler, NoTool):
        return False
    return True


CUDA = pytest.mark.skipif(not has_cuda(), reason="needs nvcc and nvdisasm")
HEADER = "#include <cuda_runtime.h>\nconstexpr long long x_numel = 1000;\n"
SOURCE = """\
__global__ void scale(const float* x, float* out) {
    __shared__ float part[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    part[threadIdx.x] = x[i];
    __syncthreads();
    if (i < x_numel) out[i] = rsqrtf(part[63 - threadIdx.x]);
}
__global__ void spills(float* x) {
    float v[200];
    for (int i = 0; i < 200; i++) v[i] = x[i * 7 + threadIdx.x];
    for (int i = 0; i < 200; i++) x[i] = v[(i * threadIdx.x) % 200];
}
extern "C" int launch(const float* x, float* out, void*, cudaStream_t stream) {
    scale<<<16, 64, 0, stream>>>(x, out);
    spills<<<1, 1024, 0, stream>>>(out);
    return cudaGetLastError();
}
"""


@pytest.fixture(scope="module")
def code() -> MachineCode:
    if not has_cuda():
        pytest.skip("needs nvcc and nvdisasm")
    return asyncio.run(machine_code(SOURCE, "cu", HEADER, "sm_90a"))


def test_sass_stands_under_the_line_it_comes_from(code: MachineCode) -> None:
    functions = {one.name.split("(")[0]: one for one in code.functions}
    assert set(functions) == {"scale", "spills"}
    scale = functions["scale"]
    assert scale.registers is not None and 5 < scale.registers < 40
    assert (scale.shared_bytes, scale.spill_bytes) == (64 * 4, 0)
    by_line = {block.line: " ".join(block.instructions) for block in scale.blocks if block.line}
    assert "BAR.SYNC" in by_line[5]
    assert any("MUFU.RSQ" in text for text in [" ".join(block.instructions) for block in scale.blocks])
    assert any(block.source.startswith("part[threadIdx.x] = x[i]") for block in scale.blocks if block.line == 4)
    assert functions["spills"].stack_bytes == 800
    assert ".entry" in code.ptx and ".target sm_90a" in code.ptx
    text = [line.text for line in code_lines(scale)]
    assert any(line.startswith("    5: __syncthreads();") for line in text)


def test_occupancy_is_told_for_the_blocks_that_the_source_launches(code: MachineCode) -> None:
    lines = list(occupancy_lines("sm_90a", code.functions[0], SOURCE))
    assert any(line.strip().startswith("blocks of 64 threads: occupancy ") for line in lines)
    assert any(line.strip().startswith("blocks of 1024 threads: occupancy ") for line in lines)


@CUDA
def test_a_kernel_that_does_not_build_says_so_in_the_compilers_words() -> None:
    with pytest.raises(DoesNotBuild, match=r"kernel\.cu\(1\): error"):
        asyncio.run(machine_code("this is no kernel", "cu", HEADER, "sm_90a"))


def test_x86_of_a_cpp_kernel() -> None:
    source = (
        "#include <cmath>\n"
        'extern "C" int launch(const float* x, float* out, void*) {\n'
        "    for (long long i = 0; i < x_numel; i++)\n"
        "        out[i] = std::sqrt(x[i]) * 3.0f;\n"
        "    return 0;\n"
        "}\n"
    )
    code = asyncio.run(machine_code(source, "cpp", "constexpr long long x_numel = 1000;\n", ""))
    (launch,) = (one for one in code.functions if one.name == "launch")
    (work,) = [" ".join(block.instructions) for block in launch.blocks if block.line == 4][:1]
    assert "sqrt" in work or "mul" in work
    assert any(block.instructions[-1].startswith("ret") for block in launch.blocks)
    assert launch.registers is None and code.ptx == ""


def test_a_py_kernel_has_none() -> None:
    with pytest.raises(ValueError, match="no machine code"):
        asyncio.run(machine_code("", "py", "", ""))
