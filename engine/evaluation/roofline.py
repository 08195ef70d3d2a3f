"""Peaks of a device as measured here, and the floor that they set for a problem.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009: no kernel is
faster than its bytes over the memory bandwidth, nor than its operations over the peak rate.
"""

from __future__ import annotations

from statistics import median

import torch

from engine.evaluation.device import JudgeDevice
from engine.problem.spec import ProblemSpec

_LARGE_COPY_BYTES = {"cpu": 64 << 20, "cuda": 2 << 30}
_MATRIX = {"cpu": 1024, "cuda": 8192}
_REPEATS = 5


def copy_bandwidth_gbs(device: JudgeDevice, nbytes: int) -> float:
    """Bytes read and written by a copy of ``nbytes``, in GB/s: the best of a few, since this is a bound."""
    elements = max(nbytes // 4, 1024)
    # Random numbers would take longer than all the copies.
    source = torch.arange(elements, dtype=torch.float32, device=device.kind)
    target = torch.empty_like(source)
    target.copy_(source)
    fastest = min(device.time_ms(lambda: target.copy_(source)) for _ in range(_REPEATS))
    return 8 * elements / fastest / 1e6


def peak_gflops(device: JudgeDevice) -> float:
    """Rate of a large matrix product in the fastest arithmetic that the tolerance admits (fp16 on a GPU)."""
    size = _MATRIX[device.kind]
    dtype = torch.float16 if device.cuda else torch.float32
    left = torch.randn(size, size, device=device.kind, dtype=dtype)
    right = torch.randn(size, size, device=device.kind, dtype=dtype)
    left @ right
    times = [device.time_ms(lambda: left @ right) for _ in range(_REPEATS)]
    return 2 * size**3 / median(times) / 1e6


def measure(device: JudgeDevice) -> tuple[float, float]:
    """(copy bandwidth in GB/s, peak rate in GFLOP/s)."""
    large = _LARGE_COPY_BYTES[device.kind]
    if device.cuda:
        large = min(large, int(torch.cuda.mem_get_info()[0]) // 4)
    return copy_bandwidth_gbs(device, large), peak_gflops(device)


def floor_ms(problem: ProblemSpec, device: JudgeDevice, bandwidth_gbs: float, gflops: float) -> float:
    """The least time for the problem's bytes and operations, milliseconds.

    On a CPU the bandwidth is that of a copy as large as the problem, whose caches may hold all of it.
    """
    if not device.cuda:
        bandwidth_gbs = max(bandwidth_gbs, copy_bandwidth_gbs(device, min(problem.floor_bytes // 2, 1 << 28)))
    return max(problem.floor_bytes / bandwidth_gbs, (problem.flops or 0) / gflops) / 1e6
