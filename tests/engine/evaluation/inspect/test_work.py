"""Names and times of the executed kernels decide whether a library did the work."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import pytest

from engine.evaluation.build.compilers import build
from engine.evaluation.inspect import own_kernels, work
from engine.evaluation.inspect.library_calls import library_of
from engine.evaluation.inspect.work import Code, LibraryWork, Ran

GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>(cutlass::Params)"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::WelfordOps<float>, 4>>(x)"
PRODUCT = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, MulFunctor<float>>>(int)"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(int)"
OWN = "void mine::attention<64, 128>(float const*, float*)"


def on_gpu(*kernels: tuple[str, str, float]) -> LibraryWork:
    return work.on_gpu(Ran(us=1000.0, kernels=kernels), {OWN}.__contains__)


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param([(GEMM, "aten::mm", 90.0)], id="an operator"),
        pytest.param([(GEMM, "", 90.0)], id="cuBLAS through ctypes, or an operator in a thread"),
        pytest.param([(REDUCE, "", 90.0), (OWN, "", 1.0)], id="a reduction beside a kernel of no use"),
        pytest.param([("fused_mul_add_relu", "", 20.0)], id="what TorchScript has compiled"),
        pytest.param([(PRODUCT, "aten::mul", 20.0)], id="a cheap operator, and nothing of its own"),
        pytest.param([(PRODUCT, "", 20.0)], id="a cheap kernel in a graph, and nothing of its own"),
        pytest.param([(PRODUCT, "aten::mul", 60.0), (OWN, "", 40.0)], id="cheap operators for most of the time"),
        pytest.param([(GEMM, "aten::mm", 40.0), (OWN, "", 60.0)], id="a matrix product for much of the time"),
    ],
)
def test_a_library_does_the_work(kernels: list[tuple[str, str, float]]) -> None:
    found = on_gpu(*kernels)
    assert found.too_much and found.names, found


@pytest.mark.parametrize(
    ("kernels", "named"),
    [
        pytest.param([(OWN, "", 90.0)], (), id="own alone"),
        pytest.param([(OWN, "", 90.0), (FILL, "aten::zeros", 90.0)], (), id="zeros by PyTorch"),
        pytest.param([(OWN, "", 90.0), ("Memset (Device)", "", 90.0)], (), id="zeros by the driver"),
        pytest.param([(OWN, "", 9.0), ("dropout", "aten::bernoulli_", 90.0)], (), id="random numbers by PyTorch"),
        pytest.param([(OWN, "", 90.0), (PRODUCT, "aten::mul", 10.0)], ("PyTorch's mul()",), id="one scaling"),
        pytest.param([(OWN, "", 90.0), (PRODUCT, "aten::mul_", 10.0)], ("PyTorch's mul_()",), id="one in place"),
        pytest.param([(OWN, "", 90.0), (REDUCE, "aten::sum", 8.0)], ("PyTorch's sum()",), id="the last of a sum"),
    ],
)
def test_own_kernels_do_the_work(kernels: list[tuple[str, str, float]], named: tuple[str, ...]) -> None:
    found = on_gpu(*kernels)
    assert not found.too_much
    assert found.names == named


def on_cpu(code: Code | None, *operators: tuple[str, float], compiled: bool = True) -> LibraryWork:
    return work.on_cpu(Ran(us=100.0, operators=operators), code, compiled)


def test_on_a_cpu_samples_tell_how_much_is_pytorchs_and_the_profiler_which_operators_that_is() -> None:
    mul, empty = ("aten::mul", 10.0), ("aten::empty", 30.0)
    found = on_cpu(Code(0.4, {}), mul, empty)
    assert found == LibraryWork(("PyTorch's mul()",), pytest.approx(0.1 / 0.7), False)
    assert on_cpu(None, mul, empty) == found  # without permission to look, only the profiler's times
    assert on_cpu(Code(0.0, {}), mul).names == ("PyTorch's mul()",)
    assert on_cpu(Code(0.4, {}), mul, compiled=False).too_much
    assert on_cpu(Code(0.4, {}), ("aten::sort", 40.0)).too_much
    assert on_cpu(Code(0.0, {"numpy": 0.4}), mul).too_much
    assert not on_cpu(Code(0.9, {}), ("aten::bernoulli_", 85.0), ("aten::mul", 5.0)).too_much


def test_code_of_pytorchs_that_no_operator_accounts_for_is_a_library() -> None:
    found = on_cpu(Code(0.9, {}), ("aten::empty", 1.0))
    assert found.too_much and "bypassing its operators" in found.names[0]


def test_a_disturbed_call_of_an_operator_does_not_count() -> None:
    calm = Ran(us=100.0, operators=(("aten::mul", 10.0),))
    disturbed = Ran(us=9000.0, operators=(("aten::mul", 8910.0), ("aten::sort", 1.0)))
    assert work.least(disturbed, calm) == work.least(calm, disturbed) == calm


def test_samples_of_code_are_of_the_library_that_their_file_belongs_to() -> None:
    samples = Counter(
        {
            "/usr/lib/libc.so.6": 0,
            "": 10,
            "/cache/kernel/extensions/c-1/kernel.so": 30,
            "/venv/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so": 10,
            "/venv/lib/python3.12/site-packages/numpy/_core/_multiarray_umath.so": 30,
            "/venv/lib/python3.12/site-packages/numpy.libs/libscipy_openblas64_.so": 20,
        }
    )
    shares = work.shares_of(samples, lambda file: "libtorch_cpu" in file, library_of)
    assert shares == Code(0.2, {"numpy (_multiarray_umath.so)": 0.3, "libscipy_openblas64_.so": 0.2})


SOURCE = '''
import torch, triton
from kernel_tui import load_c

kernels = load_c("""
namespace mine { template <typename T, int N> __global__ void scale(T* x) { x[threadIdx.x] *= T(N); } }
namespace { __global__ void hidden(float* x) { x[0] += 1; } }
#define KERNEL(name) static __global__ void name##_kernel(float* x) { x[0] += 2; }
KERNEL(made)
extern "C" __global__ void __launch_bounds__(256, 2) plain(float* x) { x[0] *= 2; }
extern "C" int run(float* x, cudaStream_t s) {
    mine::scale<float, 4><<<1, 32, 0, s>>>(x);
    hidden<<<1, 1, 0, s>>>(x);
    made_kernel<<<1, 1, 0, s>>>(x);
    plain<<<1, 1, 0, s>>>(x);
    return cudaGetLastError();
}""", "cu")

@triton.autotune(configs=[], key=[])
@triton.jit
def attend(x):
    pass

def helper(x):
    return x
'''


def test_kernels_in_the_source_are_its_own() -> None:
    own = own_kernels.of(SOURCE, [])
    assert {name for name in ("plain", "attend", "helper", "made_kernel", GEMM) if name in own} == {"plain", "attend"}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_kernels_that_it_has_compiled_are_its_own_however_they_are_written(tmp_path: Path) -> None:
    source = SOURCE.partition('"""')[2].partition('"""')[0]
    library, report = asyncio.run(build(source, "cu", "", "sm_90a", tmp_path, defines="run"))
    assert library is not None, report.log
    own = own_kernels.of("", [library])
    registered = (
        "void mine::scale<float, 4>(float*)",
        "(anonymous namespace)::hidden(float*)",
        "made_kernel(float*)",
        "plain",
    )
    assert all(name in own for name in registered)
    assert not any(name in own for name in (GEMM, REDUCE, PRODUCT, "void mine::scale<float, 8>(float*)"))
