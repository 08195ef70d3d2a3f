"""The judge's own compiled helper: comparing large outputs on the CPU in one pass.

The same in PyTorch takes seven passes and a wake-up of all threads for each, several times a timed call's own cost.
"""

from __future__ import annotations

import asyncio
import ctypes
from functools import cache
from pathlib import Path

import torch

from engine.evaluation.build import NoCompiler, build, default_cache

_SOURCE = Path(__file__).with_name("compare.cpp")
_FLOATS = {
    torch.float64: "errors_float64",
    torch.float32: "errors_float32",
    torch.float16: "errors_float16",
    torch.bfloat16: "errors_bfloat16",
}


@cache
def _library() -> ctypes.CDLL | None:
    """The built helper, or None where it cannot be built (the comparison in PyTorch serves then)."""
    try:
        path, _ = asyncio.run(build(_SOURCE.read_text(), "cpp", "", "", default_cache(), defines="errors_float32"))
    except (NoCompiler, OSError):
        return None
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    for size in (1, 2, 4, 8):
        getattr(library, f"different_{size}").restype = ctypes.c_int64
    return library


def prepare() -> None:
    """Build and load the helper now."""
    _library()


def _serves(out: torch.Tensor, want: torch.Tensor) -> bool:
    on_cpu = out.device.type == want.device.type == "cpu"
    return bool(on_cpu and out.dtype == want.dtype and out.is_contiguous() and want.is_contiguous())


def largest_errors(out: torch.Tensor, want: torch.Tensor, floor: float) -> tuple[float, float] | None:
    """(largest absolute error, largest error relative to ``|want| + floor``), infinite where anything is not finite.

    Both contiguous, of one floating-point dtype, on the CPU; None where the helper does not serve.
    """
    helper = _library() if out.dtype in _FLOATS and _serves(out, want) else None
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


def count_different(out: torch.Tensor, want: torch.Tensor) -> int | None:
    """How many elements differ in any bit. Both contiguous, of one dtype, on the CPU; None where it does not serve."""
    helper = _library() if out.element_size() in (1, 2, 4, 8) and _serves(out, want) else None
    if helper is None:
        return None
    count = getattr(helper, f"different_{out.element_size()}")
    return int(count(ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(want.data_ptr()), ctypes.c_int64(out.numel())))
