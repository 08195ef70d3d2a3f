"""On a GPU, the names of the process's kernels reveal library calls. ``test_work.py`` tests the rule."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.problem.spec import Language
from tests.engine.evaluation.conftest import Bench

pytestmark = pytest.mark.gpu

PRODUCT = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.relu(x @ y)

def get_inputs():
    return [torch.randn(1024, 1024), torch.randn(1024, 1024)]
"""
SPREAD = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.var(x, dim=1)

def get_inputs():
    return [torch.randn(8192, 2048)]
"""
DOUBLED = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.exp(torch.sin(x) * torch.cos(x)) * 2.0

def get_inputs():
    return [torch.randn(4096, 2048)]
"""
MODULE = """
import ctypes
import threading
import torch
from kernel_tui import load_c
{top}

def in_thread(call):
    made = []
    thread = threading.Thread(target=lambda: made.append(call()))
    thread.start()
    thread.join()
    return made[0]

class ModelNew(torch.nn.Module):
    def forward(self, x, y=None):
        {work}
"""
CUBLAS = """
blas = None

def sgemm(x, y):
    global blas
    if blas is None:
        torch.cuda.current_blas_handle()
        with open("/proc/self/maps") as file:
            path = next(line.split()[-1] for line in file if "libcublas.so" in line)
        blas = ctypes.CDLL(path)
    out = torch.empty(x.shape[0], y.shape[1], device=x.device)
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    pointer = lambda tensor: ctypes.c_void_p(tensor.data_ptr())
    n, m, k = y.shape[1], x.shape[0], x.shape[1]
    blas.cublasSgemm_v2(
        ctypes.c_void_p(torch.cuda.current_blas_handle()), 0, 0, n, m, k, ctypes.byref(one), pointer(y), n,
        pointer(x), k, ctypes.byref(zero), pointer(out), n,
    )
    return out.relu_()
"""
CALLS = {
    "a product in a thread": (PRODUCT, "", "return in_thread(lambda: torch.relu(torch.matmul(x, y)))"),
    "a reduction in a thread": (SPREAD, "", "return in_thread(lambda: torch.var_mean(x, dim=1)[0])"),
    "TorchScript": (
        PRODUCT,
        "@torch.jit.script\ndef scripted(x, y):\n    return torch.relu(x @ y)",
        "return scripted(x, y)",
    ),
    "cuBLAS through ctypes": (PRODUCT, CUBLAS, "return sgemm(x, y)"),
    "an operator in a graph": (
        SPREAD,
        "state = {}",
        """
        if "graph" not in state:
            state["x"] = x.clone()
            torch.var(state["x"], dim=1)
            torch.cuda.synchronize()
            state["graph"] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(state["graph"]):
                state["out"] = torch.var(state["x"], dim=1)
        state["x"].copy_(x)
        state["graph"].replay()
        return state["out"].clone()
        """,
    ),
}
OWN = '''
kernels = load_c("""
__global__ void work(const float* x, float* out, long long n) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < n) out[i] = expf(sinf(x[i]) * cosf(x[i]));
}
extern "C" int run(const float* x, float* out, long long n, cudaStream_t stream) {
    work<<<(n + 255) / 256, 256, 0, stream>>>(x, out, n);
    return cudaGetLastError();
}""", "cu")
'''
TRITON = """
import triton
import triton.language as tl

@triton.jit
def work(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.exp(tl.sin(values) * tl.cos(values)) * 2.0, mask=at < n)
"""
HONEST = {
    "load_c": (OWN.replace("cosf(x[i]))", "cosf(x[i])) * 2.0f"), "kernels.run(x, out, x.numel())", ()),
    "load_c and a scaling": (OWN, "kernels.run(x, out, x.numel())\n        out = out * 2.0", ("mul",)),
    "load_c and a scaling in place": (OWN, "kernels.run(x, out, x.numel())\n        out.mul_(2.0)", ("mul_",)),
    "Triton": (TRITON, "work[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)", ()),
    "load_c in a graph": (
        OWN.replace("cosf(x[i]))", "cosf(x[i])) * 2.0f") + "\nstate = {}\n",
        """
        if "graph" not in state:
            state["x"], state["out"] = x.clone(), out
            kernels.run(state["x"], state["out"], x.numel())
            torch.cuda.synchronize()
            state["graph"] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(state["graph"]):
                for _ in range(4):  # longer than the copy
                    kernels.run(state["x"], state["out"], x.numel())
        state["x"].copy_(x)
        state["graph"].replay()
        out = state["out"]
        """,
        None,
    ),
}


@pytest.fixture
def judge(bench_of: Callable[[Language], Bench]) -> Bench:
    return bench_of("cu")


@pytest.mark.parametrize("call", CALLS)
def test_work_that_a_library_does_is_named(judge: Bench, tmp_path: Path, call: str) -> None:
    problem, top, work = CALLS[call]
    judge.open(problem, "product" if problem is PRODUCT else "spread", tmp_path)
    verdict = judge.judge(MODULE.format(top=top, work=work), "py")
    assert (verdict.status, verdict.pattern) == ("library", "calls a library"), (verdict.status, verdict.reason)


@pytest.mark.parametrize("kernel", HONEST)
def test_own_kernels_count(judge: Bench, tmp_path: Path, kernel: str) -> None:
    if kernel == "Triton" and importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    top, work, remarks = HONEST[kernel]
    judge.open(DOUBLED, "doubled", tmp_path)
    source = MODULE.format(top=top, work=f"out = torch.empty_like(x)\n        {work}\n        return out")
    verdict = judge.judge(source, "py")
    assert verdict.correct, (verdict.status, verdict.reason)
    if remarks is not None:
        said = [flag for flag in verdict.flags if "in addition to its own kernels" in flag]
        assert said == [f"the module calls PyTorch's {name}() in addition to its own kernels" for name in remarks]
