"""Evaluations that share a GPU wait for memory. The judge blames no kernel for memory that others use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.devices.hardware import discover
from engine.exit_codes import ExitCode
from tests.commandline import KernelTui, environment

pytestmark = [pytest.mark.gpu, pytest.mark.serial, pytest.mark.timeout(1500)]

PROBLEM = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn({count})]

def get_init_inputs():
    return []
"""
KERNEL = """\
{outside}
__global__ void relu(const float* x, float* out) {{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < x_numel) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}}

extern "C" int launch(const float* x, float* out, void* workspace, cudaStream_t stream) {{
    {before}
    relu<<<(x_numel + 255) / 256, 256, 0, stream>>>(x, out);
    return cudaGetLastError();
}}
"""
ASKS_TOO_MUCH = "static void* kept = nullptr; if (!kept && cudaMalloc(&kept, 1ULL << 43)) return cudaGetLastError();"
HOLD = """
import sys, torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(int({share} * total), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""
EVAL = ("eval", "relu.cu", "--problem", "relu.py", "--device", "cuda", "--quick", "--json")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A problem whose tensors take a sixth of the first GPU's memory, and a kernel for it."""
    gpu = next((device for device in discover() if device.kind == "cuda"), None)
    if gpu is None:
        pytest.skip("needs an NVIDIA GPU and nvcc")
    (tmp_path / "relu.py").write_text(PROBLEM.format(count=gpu.memory_bytes // 6 // 8 // 1024 * 1024))
    (tmp_path / "relu.cu").write_text(KERNEL.format(outside="", before=""))
    (tmp_path / "greedy.cu").write_text(KERNEL.format(outside="", before=ASKS_TOO_MUCH))
    return tmp_path


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tui.cli.main", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory, env=environment(),
    )  # fmt: skip


def test_five_evaluations_of_a_sixth_of_the_memory_each_are_all_right(directory: Path) -> None:
    running = [start(directory, *EVAL) for _ in range(5)]
    said = [one.communicate(timeout=1200) for one in running]
    verdicts = [KernelTui.decode(output) if output else {"status": error} for output, error in said]
    assert [verdict["status"] for verdict in verdicts] == 5 * ["correct"], [one.get("reason") for one in verdicts]


def test_an_evaluation_waits_for_memory_that_another_program_holds_and_names_it(directory: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD.format(share=0.7)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        judged = start(directory, *EVAL)
        assert judged.stderr is not None
        said = next(line for line in judged.stderr if "of memory needed" in line)
        assert re.search(r"needed, [\d.]+ [GM]B free; ", said)
        holder.stdin.close()
    output, error = judged.communicate(timeout=600)
    assert judged.returncode == ExitCode.OK, error
    verdict = KernelTui.decode(output)
    assert verdict["status"] == "correct" and verdict["stage_s"]["waiting"] > 0, verdict


def test_a_kernel_that_asks_for_more_than_the_device_has_is_told_so(directory: Path) -> None:
    judged = KernelTui(directory)("eval", "greedy.cu", *EVAL[2:], timeout=600)
    verdict = KernelTui.decode(judged.stdout)
    assert verdict["status"] == "memory", verdict["reason"]
    assert verdict["reason"].startswith("the kernel requested more memory than the device has: launch returned 2")
