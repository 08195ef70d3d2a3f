"""A compiled helper that compares large outputs and mixes large inputs on the CPU in one pass.

PyTorch needs seven passes for a comparison, and wakes all threads for each pass. These passes take several times as
long as the overhead of a timed call. To mix inputs, PyTorch needs three passes.
"""

from __future__ import annotations

import asyncio
import ctypes
from functools import cache
from pathlib import Path

import torch

from engine.evaluation.build.compilers import NoCompiler, build, default_cache

_SOURCE = Path(__file__).with_name("one_pass.cpp")
_FLOATS = {
    torch.float64: "errors_float64",
    torch.float32: "errors_float32",
    torch.float16: "errors_float16",
    torch.bfloat16: "errors_bfloat16",
}
_MIXED = {torch.float64: "mix_float64", torch.float32: "mix_float32"}


@cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled helper, or None if it cannot be built or loaded; callers then use PyTorch."""
    try:
        path, _ = asyncio.run(build(_SOURCE.read_text(), "cpp", "", "", default_cache(), defines="errors_float32"))
        return None if path is None else ctypes.CDLL(str(path))
    except (NoCompiler, OSError):
        return None


def prepare() -> None:
    """Build and load the helper in advance."""
    _library()


def largest_errors(out: torch.Tensor, want: torch.Tensor, floor: float) -> tuple[float, float] | None:
    """Return the largest absolute error and the largest error relative to ``|want| + floor``. If an element is not
    finite, both errors are infinite.

    The helper supports only contiguous CPU tensors of the same floating-point dtype. Returns None for other tensors, or
    if the helper is not available.
    """
    on_cpu = out.device.type == want.device.type == "cpu" and out.is_contiguous() and want.is_contiguous()
    helper = _library() if on_cpu and out.dtype == want.dtype and out.dtype in _FLOATS else None
    if helper is None:
        return None
    result = (ctypes.c_double * 3)()
    getattr(helper, _FLOATS[out.dtype])(
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_void_p(want.data_ptr()),
        ctypes.c_int64(out.numel()),
        ctypes.c_double(floor),
        result,
    )
    if result[2]:
        return float("inf"), float("inf")
    return result[0], result[1]


def mix(
    target: torch.Tensor,
    mine: torch.Tensor,
    theirs: torch.Tensor,
    noise: torch.Tensor,
    shares: tuple[float, float],
    moved: int,
) -> bool:
    """Write ``shares[0] * mine + shares[1] * theirs + noise`` to ``target``. The sum uses ``theirs`` rotated by
    ``moved`` elements.

    All tensors are flat and of the same dtype. ``noise`` is shorter than the other tensors and repeats. If the helper
    does not support the tensors, returns False and writes nothing.
    """
    tensors = (target, mine, theirs, noise)
    fits = all(one.device.type == "cpu" and one.is_contiguous() and one.dtype == target.dtype for one in tensors)
    helper = _library() if fits and target.dtype in _MIXED else None
    if helper is None:
        return False
    sizes = (ctypes.c_int64(size) for size in (target.numel(), moved, noise.numel()))
    addresses = (ctypes.c_void_p(one.data_ptr()) for one in tensors)
    getattr(helper, _MIXED[target.dtype])(*addresses, *sizes, *map(ctypes.c_double, shares))
    return True
