"""Is an output right? Comparisons with the reference, scale-free, with words for what is wrong.

A floating-point element passes when ``|out - expected| <= tolerance * (rms(expected) + |expected|)``. Unlike an
absolute tolerance this refuses zeros, means and copies at every scale of the data. Integers and booleans must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
from msgspec import Struct

from engine.evaluation.native import count_different, largest_errors

_CHUNK = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Elements compared at once: on a CPU they stay in its caches."""
_SAMPLE_ABOVE, _SAMPLE_STRIDE = 1 << 20, 61


class Comparison(Struct, frozen=True):
    """``problem`` is None when all elements passed. Errors are the largest seen; relative to rms + magnitude."""

    problem: str | None
    max_abs_error: float
    max_rel_error: float


class Tolerances(Struct, frozen=True):
    """The tolerance for outputs in fp32 and fp64, and for those in fp16 and bf16."""

    full: float
    half: float

    def of(self, dtype: torch.dtype) -> float:
        return self.half if dtype in _HALVES else self.full


_HALVES = (torch.float16, torch.bfloat16)


def compare(
    outputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    tolerance: float | Tolerances,
    names: Sequence[str] = (),
) -> Comparison:
    """Compare all outputs with the reference's, in order; ``names`` are what to call them."""
    tolerances = tolerance if isinstance(tolerance, Tolerances) else Tolerances(tolerance, tolerance)
    names = names or (["out"] if len(outputs) == 1 else [f"out{index}" for index in range(len(outputs))])
    worst_abs = worst_rel = 0.0
    for name, out, want in zip(names, outputs, expected, strict=True):
        one = _compare_one(out, want.reshape(out.shape), tolerances.of(out.dtype))
        worst_abs, worst_rel = max(worst_abs, one.max_abs_error), max(worst_rel, one.max_rel_error)
        if one.problem is not None:
            return Comparison(f"{name}: {one.problem}", worst_abs, worst_rel)
    return Comparison(None, worst_abs, worst_rel)


def _compare_one(out: torch.Tensor, want: torch.Tensor, tolerance: float) -> Comparison:
    if out.numel() == 0:
        return Comparison(None, 0.0, 0.0)
    if not out.is_floating_point():
        return _compare_exactly(out, want)
    if out.dtype in _HALVES and out.device.type != "cpu":
        out, want = out.float(), want.float()
    rms = root_mean_square(want)
    if not _finite(rms):
        return _compare_with_infinities(out, want, tolerance)
    wide = torch.float32 if want.dtype in _HALVES else want.dtype
    floor = max(rms, torch.finfo(wide).tiny)
    found = largest_errors(out, want, floor)
    if found is None:
        out, want = out.to(wide), want.to(wide)
        found = _largest_errors(out, want, floor)
    worst, relative = found
    if not (_finite(worst) and relative <= tolerance):
        if not bool(torch.isfinite(want).all()):
            return _compare_with_infinities(out, want, tolerance)
        return _describe(out, want, tolerance, floor)
    return Comparison(None, worst, relative)


def _compare_exactly(out: torch.Tensor, want: torch.Tensor) -> Comparison:
    """Integers must be equal; so must booleans, whose bytes are 0 or 1."""
    boolean = out.dtype == torch.bool
    if boolean:
        # What a kernel stored may be no boolean at all, which PyTorch would not notice.
        out, want = out.view(torch.uint8), want.contiguous().view(torch.uint8)
    different = count_different(out, want)
    if different is None:
        different = int((out != want).sum())
    if not different:
        return Comparison(None, 0.0, 0.0)
    first = int((out != want).reshape(-1).nonzero()[0])
    where = ", ".join(str(i) for i in _index(first, out.shape))
    got, goal = int(out.reshape(-1)[first]), int(want.reshape(-1)[first])
    shown = (
        f"{bool(got) if got < 2 else f'byte {got}'}, expected {bool(goal)}" if boolean else f"{got}, expected {goal}"
    )
    text = f"{different:,} of {out.numel():,} elements differ; first at [{where}]: {shown}"
    error = float((out.double() - want.double()).abs().max())
    return Comparison(text, error, error / max(abs(float(want.double().abs().max())), 1.0))


def root_mean_square(want: torch.Tensor) -> float:
    """Of all elements; of a large tensor, that of every 61st element."""
    flat = want.reshape(-1)
    sample = flat[::_SAMPLE_STRIDE] if flat.numel() > _SAMPLE_ABOVE else flat
    norm = float(torch.linalg.vector_norm(sample, dtype=torch.float32 if sample.dtype in _HALVES else None))
    if not _finite(norm) and sample.dtype != torch.float64:  # the squares alone may be too large
        norm = float(torch.linalg.vector_norm(sample, dtype=torch.float64))
    return norm / math.sqrt(max(sample.numel(), 1))


def _largest_errors(out: torch.Tensor, want: torch.Tensor, floor: float) -> tuple[float, float]:
    """(absolute, relative to ``|want| + floor``), infinite where anything is not finite."""
    worst_abs, worst_rel = 0.0, 0.0
    chunk = _CHUNK[out.device.type]
    error, size = _scratch(chunk, want.dtype, want.device)
    for part, goal in zip(out.reshape(-1).split(chunk), want.reshape(-1).split(chunk), strict=True):
        here, scale = error[: part.numel()], size[: part.numel()]
        torch.sub(part, goal, out=here).abs_()
        worst = float(here.max())
        torch.abs(goal, out=scale).add_(floor)
        relative = float(here.div_(scale).max())
        if not (_finite(worst) and _finite(relative)):
            return float("inf"), float("inf")
        worst_abs, worst_rel = max(worst_abs, worst), max(worst_rel, relative)
    return worst_abs, worst_rel


@cache
def _scratch(elements: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Two buffers kept for good: fresh ones would cost more in page faults than the comparison itself."""
    return torch.empty(elements, dtype=dtype, device=device), torch.empty(elements, dtype=dtype, device=device)


def _compare_with_infinities(out: torch.Tensor, want: torch.Tensor, tolerance: float) -> Comparison:
    """The reference itself is not finite: the masks must agree, and the finite elements as usual."""
    finite = torch.isfinite(want)
    if not bool((torch.isfinite(out) == finite).all()):
        return Comparison("infinities or NaN stand elsewhere than in the reference", float("inf"), float("inf"))
    if not bool((torch.nan_to_num(out[~finite]) == torch.nan_to_num(want[~finite])).all()):
        return Comparison("infinities differ from the reference's", float("inf"), float("inf"))
    if not bool(finite.any()):
        return Comparison(None, 0.0, 0.0)
    if bool(finite.all()):  # but their squares are not
        size = want.abs().max()
        return _compare_one(out / size, want / size, tolerance)
    return _compare_one(out[finite], want[finite], tolerance)


def _describe(out: torch.Tensor, want: torch.Tensor, tolerance: float, rms: float) -> Comparison:
    """Words for a mismatch: how many, where the first is, how far off."""
    broken = int((~torch.isfinite(out)).sum())
    error = (out.double() - want.double()).abs()
    relative = error / (want.double().abs() + rms)
    bad = ~(relative <= tolerance)
    places = bad.reshape(-1).nonzero()
    if places.numel() == 0:  # somebody wrote into it since it was found to be off
        return Comparison("changed while it was compared", float("inf"), float("inf"))
    first = int(places[0])
    got, goal = float(out.reshape(-1)[first]), float(want.reshape(-1)[first])
    share = int(bad.sum()) / out.numel()
    where = ", ".join(str(i) for i in _index(first, out.shape))
    text = f"{share:.1%} of elements are off by more than {tolerance:g}; first at [{where}]: {got:.6g}"
    text += f", expected {goal:.6g}"
    if broken:
        text += f"; {broken:,} are not finite"
    finite_error = torch.nan_to_num(error, nan=float("inf"))
    finite_relative = torch.nan_to_num(relative, nan=float("inf"))
    return Comparison(text, float(finite_error.max()), float(finite_relative.max()))


def _index(flat: int, shape: Sequence[int]) -> list[int]:
    index: list[int] = []
    for extent in reversed(shape):
        flat, here = divmod(flat, extent)
        index.insert(0, here)
    return index


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")


def checksum(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """An order-insensitive sum of the bytes' 64-bit words, and of the tail; cheap, for noticing stray writes."""
    sums = []
    for tensor in tensors:
        flat = tensor.reshape(-1).view(torch.uint8)
        whole = flat.numel() // 8 * 8
        total = flat[:whole].view(torch.int64).sum()
        sums.append(total + flat[whole:].sum() if whole < flat.numel() else total)
    return tuple(torch.stack(sums).tolist()) if sums else ()  # one wait for the device
