"""Measure a device's peaks, and derive the lower bound (SOL) on a problem's time.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009: no kernel takes
less time than its bytes divided by the memory bandwidth, or its operations divided by the peak rate.
"""

from __future__ import annotations

import torch

from engine.evaluation.correctness.comparison import Tolerances
from engine.evaluation.judge_device import JudgeDevice
from engine.evaluation.judge_policy import POLICY
from engine.problem.spec import ProblemSpec

_DEVICE = POLICY.device


def copy_bandwidth_gbs(device: JudgeDevice, nbytes: int) -> float:
    """Return the bandwidth of a copy of ``nbytes`` in GB/s, reads plus writes. The fastest of several copies counts,
    because the result is a bound.
    """
    elements = max(nbytes // 4, 1024)
    # Drawing random numbers would take longer than all copies.
    source = torch.arange(elements, dtype=torch.float32, device=device.kind)
    target = torch.empty_like(source)
    target.copy_(source)
    fastest = min(device.time_ms(lambda: target.copy_(source)) for _ in range(_DEVICE.peak_repeats))
    return 8 * elements / fastest / 1e6


def peak_gflops(device: JudgeDevice) -> float:
    """Return the peak rate of matrix products in GFLOP/s. The fastest of several products counts, because the result is
    a bound.

    On a GPU, these are products on tensor cores, of which smaller ones and those in bf16 sometimes run faster.
    """
    size = int(_DEVICE.matrix[device.kind])
    sizes = (size // 2, size) if device.cuda else (size,)
    dtypes = (torch.float16, torch.bfloat16) if device.cuda else (torch.float32,)
    return max(_product_gflops(device, size, dtype) for size in sizes for dtype in dtypes)


def _product_gflops(device: JudgeDevice, size: int, dtype: torch.dtype) -> float:
    left = torch.randn(size, size, device=device.kind, dtype=dtype)
    right = torch.randn(size, size, device=device.kind, dtype=dtype)
    left @ right
    fastest = min(device.time_ms(lambda: left @ right) for _ in range(_DEVICE.peak_repeats))
    return 2 * size**3 / fastest / 1e6


def measure(device: JudgeDevice) -> tuple[float, float]:
    """Return the copy bandwidth in GB/s and the peak rate in GFLOP/s."""
    large = int(_DEVICE.copy_bytes[device.kind])
    if device.cuda:
        large = min(large, int(torch.cuda.mem_get_info()[0]) // 4)
    return copy_bandwidth_gbs(device, large), peak_gflops(device)


def sol_ms(
    problem: ProblemSpec, device: JudgeDevice, bandwidth_gbs: float, gflops: float, tolerances: Tolerances
) -> float:
    """Return the lower bound on the time for the problem's bytes and operations, in milliseconds.

    On a CPU, the bandwidth comes from a copy as large as the problem, because all of its data may fit in the caches.
    """
    if not device.cuda:
        bandwidth_gbs = max(bandwidth_gbs, copy_bandwidth_gbs(device, min(problem.sol_bytes // 2, 1 << 28)))
    products = _DEVICE.exact_products if device.cuda and needs_exact_products(problem, tolerances) else 1
    return max(problem.sol_bytes / bandwidth_gbs, products * (problem.flops or 0) / gflops) / 1e6


def needs_exact_products(problem: ProblemSpec, tolerances: Tolerances) -> bool:
    """Return whether one product of 16-bit operands is too inexact for the problem's tolerance."""
    given = {tensor.dtype for tensor in (*problem.inputs, *problem.weights)}
    is_full = any(output.dtype in ("float32", "float64") for output in problem.outputs)
    return is_full and tolerances.full < _DEVICE.one_product and given.isdisjoint({"float16", "bfloat16"})
