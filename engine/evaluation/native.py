"""The judge's own compiled helper: comparing large fp32 outputs on the CPU in one pass.

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


@cache
def _library() -> ctypes.CDLL | None:
    """The built helper, or None where it cannot be built (the comparison in PyTorch serves then)."""
    try:
        path, _ = asyncio.run(build(_SOURCE.read_text(), "cpp", "", "", default_cache(), defines="compare_fp32"))
    except (NoCompiler, OSError):
        return None
    return ctypes.CDLL(str(path)) if path is not None else None


def prepare() -> None:
    """Build and load the helper now."""
    _library()


def compare_fp32(out: torch.Tensor, want: torch.Tensor, floor: float) -> tuple[float, float] | None:
    """(largest absolute error, largest error relative to ``|want| + floor``), infinite where anything is not finite.

    Both contiguous fp32 on the CPU; None where the helper does not serve.
    """
    helper = _library() if out.device.type == "cpu" and out.dtype == want.dtype == torch.float32 else None
    if helper is None or not (out.is_contiguous() and want.is_contiguous()):
        return None
    result = (ctypes.c_double * 3)()
    helper.compare_fp32(
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_void_p(want.data_ptr()),
        ctypes.c_int64(out.numel()),
        ctypes.c_float(floor),
        result,
    )
    if result[2]:
        return float("inf"), float("inf")
    return result[0], result[1]
