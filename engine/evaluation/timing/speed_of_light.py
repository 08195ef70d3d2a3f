"""Measure a device's peaks, and derive the lower bound (SOL) on a problem's time.

No kernel takes less time than its bytes divided by the memory bandwidth, or its operations divided by the peak rate.
Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from engine.evaluation.correctness.comparison import Tolerances
from engine.evaluation.judge_device import JudgeDevice
from engine.evaluation.judge_policy import POLICY
from engine.problem.spec import ProblemSpec

_DEVICE = POLICY.device


class Peaks:
    """A device's peaks: memory bandwidth and arithmetic rate. Each property measures its peak when first read, if the
    peak is unknown.
    """

    def __init__(
        self, device: JudgeDevice, known_bandwidth_gbs: float | None = None, known_gflops: float | None = None
    ) -> None:
        self._device, self._bandwidth_gbs, self._gflops = device, known_bandwidth_gbs, known_gflops

    @property
    def bandwidth_gbs(self) -> float:
        """The bandwidth of a large copy in GB/s."""
        if self._bandwidth_gbs is None:
            large = int(_DEVICE.copy_bytes[self._device.kind])
            if self._device.cuda:
                large = min(large, int(torch.cuda.mem_get_info()[0]) // 4)
            self._bandwidth_gbs = copy_bandwidth_gbs(self._device, large)
        return self._bandwidth_gbs

    @property
    def gflops(self) -> float:
        """The peak rate of matrix products (on a CPU, also of convolutions) in GFLOP/s."""
        if self._gflops is None:
            self._gflops = peak_gflops(self._device)
        return self._gflops


def copy_bandwidth_gbs(device: JudgeDevice, nbytes: int) -> float:
    """Return the bandwidth of copying ``nbytes``, in GB/s, counting reads and writes. The function uses the fastest of
    several copies, because the result is a bound.
    """
    elements = max(nbytes // 4, 1024)
    # Drawing random numbers would take longer than all copies.
    source = torch.arange(elements, dtype=torch.float32, device=device.kind)
    target = torch.empty_like(source)
    target.copy_(source)
    fastest = _fastest_ms(device, lambda: target.copy_(source))
    return 8 * elements / fastest / 1e6


def peak_gflops(device: JudgeDevice) -> float:
    """Return the peak rate of matrix products in GFLOP/s. The function uses the fastest of several products, because
    the result is a bound.

    On a GPU, the products run on tensor cores. Smaller products, and products in bf16, are sometimes faster, so the
    function tries them too. On a CPU, the function also times a convolution, because PyTorch's convolution library may
    use wider vectors than its library for matrix products.
    """
    size = int(_DEVICE.matrix[device.kind])
    sizes = (size // 2, size)
    dtypes = (torch.float16, torch.bfloat16) if device.cuda else (torch.float32,)
    fastest = max(_product_gflops(device, size, dtype) for size in sizes for dtype in dtypes)
    return fastest if device.cuda else max(fastest, _convolution_gflops(device))


def _product_gflops(device: JudgeDevice, size: int, dtype: torch.dtype) -> float:
    left = torch.randn(size, size, device=device.kind, dtype=dtype)
    right = torch.randn(size, size, device=device.kind, dtype=dtype)
    left @ right
    fastest = _fastest_ms(device, lambda: left @ right)
    return 2 * size**3 / fastest / 1e6


def _convolution_gflops(device: JudgeDevice) -> float:
    images, channels, side = _DEVICE.convolution
    image = torch.randn(images, channels, side, side, device=device.kind).to(memory_format=torch.channels_last)
    weights = torch.randn(channels, channels, 3, 3, device=device.kind).to(memory_format=torch.channels_last)

    def convolve() -> object:
        return torch.nn.functional.conv2d(image, weights)

    convolve()
    return 2 * images * (side - 2) ** 2 * channels**2 * 9 / _fastest_ms(device, convolve) / 1e6


def _fastest_ms(device: JudgeDevice, call: Callable[[], object]) -> float:
    """Return the time of the fastest of several calls, in milliseconds."""
    started, times_ms = time.perf_counter(), [device.time_ms(call)]
    while len(times_ms) < _DEVICE.peak_least or (
        len(times_ms) < _DEVICE.peak_most and time.perf_counter() - started < _DEVICE.peak_s
    ):
        times_ms.append(device.time_ms(call))
    return min(times_ms)


def sol_ms(problem: ProblemSpec, device: JudgeDevice, peaks: Peaks, tolerances: Tolerances) -> float:
    """Return the lower bound on the time for the problem's bytes and operations, in milliseconds.

    On a CPU, the bandwidth comes from a copy as large as the problem, because all of the problem's data may fit in the
    caches. Every device performs more operations per second than it copies bytes, so the function does not measure the
    rate for a problem with few operations.
    """
    if device.cuda:
        bandwidth_gbs = peaks.bandwidth_gbs
    else:
        least, most = _DEVICE.copy_least_bytes, _DEVICE.copy_most_bytes
        bandwidth_gbs = copy_bandwidth_gbs(device, max(least, min(problem.sol_bytes // 2, most)))
    products = _DEVICE.exact_products if device.cuda and needs_exact_products(problem, tolerances) else 1
    operations = products * (problem.flops or 0)
    operations_ns = operations / peaks.gflops if operations > problem.sol_bytes else 0.0
    return max(problem.sol_bytes / bandwidth_gbs, operations_ns) / 1e6


def needs_exact_products(problem: ProblemSpec, tolerances: Tolerances) -> bool:
    """Return whether one product of 16-bit operands is too inexact for the problem's tolerance."""
    given = {tensor.dtype for tensor in (*problem.inputs, *problem.weights)}
    is_full = any(output.dtype in ("float32", "float64") for output in problem.outputs)
    return is_full and tolerances.full < _DEVICE.one_product and given.isdisjoint({"float16", "bfloat16"})
