"""Compare outputs with the reference's outputs, independently of their scale, and describe a mismatch.

A floating-point element passes if ``|out - expected| <= tolerance * (rms(expected) + |expected|)``. Unlike an absolute
tolerance, this criterion rejects zeros, means and copies of inputs at every scale of the data. Integers and booleans
must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from msgspec import Struct
from msgspec.structs import replace

from engine.evaluation.correctness.native import largest_errors
from engine.evaluation.judge_policy import POLICY

CHUNK = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Number of elements to compare at a time; on a CPU, this many fit in the caches."""
CHANGED = "another process changed the output during the comparison"
_SAMPLE_ABOVE, _SAMPLE_STRIDE = 1 << 20, 61
_TOGETHER = POLICY.correctness.compared_together


class Comparison(Struct, frozen=True):
    """A comparison's result.

    ``problem``: a description of the mismatch, or None if all elements passed. Both errors are maxima over all
    elements; the second error is relative to rms + magnitude. ``finite``: whether all compared elements of the
    reference are finite.
    """

    problem: str | None
    max_abs_error: float
    max_rel_error: float
    finite: bool = True


class Tolerances(Struct, frozen=True):
    """The tolerance for outputs in fp32 and fp64, and the tolerance for outputs in fp16 and bf16."""

    full: float
    half: float

    def of(self, dtype: torch.dtype) -> float:
        return self.half if dtype in _HALVES else self.full


KERNELBENCH = Tolerances(full=1e-4, half=1e-2)
_HALVES = (torch.float16, torch.bfloat16)
_WIDE = dict.fromkeys(_HALVES, torch.float32)


def compare(
    outputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    tolerance: float | Tolerances,
    names: Sequence[str] = (),
) -> Comparison:
    """Compare all outputs with the reference's outputs, in order. ``names``: the names of the outputs in messages."""
    tolerances = tolerance if isinstance(tolerance, Tolerances) else Tolerances(tolerance, tolerance)
    names = names_of(outputs, names)
    worst_abs, worst_rel, finite = 0.0, 0.0, True
    compared = list(zip(names, outputs, expected, strict=True))
    # A boolean's byte may be neither 0 nor 1.
    for dtype in {out.dtype for out in outputs} - {torch.bool}:
        small = [one for one in compared if one[1].dtype == dtype and one[1].numel() <= _TOGETHER]
        if len(small) > 1 and (errors := _errors_if_right(small, tolerances.of(dtype))) is not None:
            worst_abs, worst_rel = max(worst_abs, errors[0]), max(worst_rel, errors[1])
            compared = [one for one in compared if one[1].dtype != dtype or one[1].numel() > _TOGETHER]
    for name, out, want in compared:
        one = _compare_one(out, want.reshape(out.shape), tolerances.of(out.dtype))
        worst_abs, worst_rel = max(worst_abs, one.max_abs_error), max(worst_rel, one.max_rel_error)
        finite &= one.finite
        if one.problem is not None:
            return Comparison(f"{name}: {one.problem}", worst_abs, worst_rel, finite)
    return Comparison(None, worst_abs, worst_rel, finite)


def names_of(outputs: Sequence[torch.Tensor], names: Sequence[str] = ()) -> Sequence[str]:
    """Return ``names``, or default names for the outputs if ``names`` is empty."""
    return names or (["out"] if len(outputs) == 1 else [f"out{index}" for index in range(len(outputs))])


def _errors_if_right(
    compared: Sequence[tuple[str, torch.Tensor, torch.Tensor]], tolerance: float
) -> tuple[float, float] | None:
    """Return the largest absolute and relative errors of several small tensors of one dtype. Return None if any tensor
    is wrong.

    A network has hundreds of buffers. Comparing them one by one would take longer than running the network.
    """
    counts = torch.tensor([out.numel() for _, out, _ in compared], device=compared[0][1].device)
    out = torch.cat([out.reshape(-1) for _, out, _ in compared])
    want = torch.cat([want.reshape(-1) for _, _, want in compared])
    if not out.numel():
        return 0.0, 0.0
    if not out.is_floating_point():
        return (0.0, 0.0) if torch.equal(out, want) else None
    tiny = torch.finfo(torch.float32 if want.dtype in _HALVES else want.dtype).tiny
    out, want = out.double(), want.double()
    owners = torch.repeat_interleave(torch.arange(len(compared), device=out.device), counts)
    squares = torch.zeros(len(compared), dtype=out.dtype, device=out.device).index_add_(0, owners, want.square())
    floor = (squares / counts).sqrt().clamp_min(tiny)[owners]
    error = (out - want).abs()
    worst, relative, most = torch.stack([error.max(), (error / (want.abs() + floor)).max(), floor.max()]).tolist()
    return (worst, relative) if math.isfinite(worst) and math.isfinite(most) and relative <= tolerance else None


def passes(out: torch.Tensor, want: torch.Tensor, tolerances: Tolerances) -> bool:
    """Return whether one output is correct. This function is faster than :func:`compare`, which also describes the
    mismatch.
    """
    found = compare([out], [want], math.inf)
    return found.problem is None and found.max_rel_error <= tolerances.of(out.dtype)


def _compare_one(out: torch.Tensor, want: torch.Tensor, tolerance: float) -> Comparison:
    if out.numel() == 0:
        return Comparison(None, 0.0, 0.0)
    if not out.is_floating_point():
        return _compare_exactly(out, want)
    if out.dtype in _HALVES and out.device.type != "cpu":
        out, want = out.float(), want.float()
    rms = root_mean_square(want)
    if not math.isfinite(rms):
        return _compare_with_infinities(out, want, tolerance)
    wide = torch.float32 if want.dtype in _HALVES else want.dtype
    floor = max(rms, torch.finfo(wide).tiny)
    found = largest_errors(out, want, floor)
    if found is None:
        out, want = out.to(wide), want.to(wide)
        found = _largest_errors(out, want, floor)
    worst, relative = found
    if not (math.isfinite(worst) and relative <= tolerance):
        if not all_finite(want):
            return _compare_with_infinities(out, want, tolerance)
        return _describe(out, want, tolerance, floor)
    return Comparison(None, worst, relative)


def _compare_exactly(out: torch.Tensor, want: torch.Tensor) -> Comparison:
    """Compare integers and booleans exactly; a boolean's byte must be 0 or 1."""
    boolean = out.dtype == torch.bool
    if boolean:
        # A kernel may store a byte other than 0 or 1 as a boolean, and PyTorch would accept that byte.
        out, want = out.view(torch.uint8), want.contiguous().view(torch.uint8)
    if not (different := int(torch.count_nonzero(out != want))):
        return Comparison(None, 0.0, 0.0)
    first = int((out != want).reshape(-1).nonzero()[0])
    where = _index(first, out.shape)
    got, goal = int(out.reshape(-1)[first]), int(want.reshape(-1)[first])
    shown = (
        f"{bool(got) if got < 2 else f'byte {got}'}, expected {bool(goal)}" if boolean else f"{got}, expected {goal}"
    )
    text = f"{different:,} of {out.numel():,} elements differ; the first is at {where}: {shown}"
    error = float((out.double() - want.double()).abs().max())
    return Comparison(text, error, error / max(abs(float(want.double().abs().max())), 1.0))


def all_finite(tensor: torch.Tensor) -> bool:
    """Return whether all elements are finite. One fast pass that sums the elements usually suffices."""
    if tensor.is_floating_point() and math.isfinite(float(tensor.sum(dtype=_WIDE.get(tensor.dtype)))):
        return True
    return bool(torch.isfinite(tensor).all())


def root_mean_square(want: torch.Tensor) -> float:
    """Return the root mean square of all elements, or of every 61st element of a large tensor."""
    flat = want.reshape(-1)
    sample = flat[::_SAMPLE_STRIDE] if flat.numel() > _SAMPLE_ABOVE else flat
    norm = float(torch.linalg.vector_norm(sample, dtype=_WIDE.get(sample.dtype)))
    # The sum of the squares may overflow even if their mean does not.
    if not math.isfinite(norm) and sample.dtype != torch.float64:
        norm = float(torch.linalg.vector_norm(sample, dtype=torch.float64))
    return norm / math.sqrt(max(sample.numel(), 1))


def _largest_errors(out: torch.Tensor, want: torch.Tensor, floor: float) -> tuple[float, float]:
    """Return the largest absolute error and the largest error relative to ``|want| + floor``. If an element is not
    finite, both errors are infinite.
    """
    worst_abs, worst_rel = 0.0, 0.0
    chunk = CHUNK[out.device.type]
    for part, goal in zip(out.reshape(-1).split(chunk), want.reshape(-1).split(chunk), strict=True):
        error = (part - goal).abs_()
        worst, relative = float(error.max()), float(error.div_(goal.abs().add_(floor)).max())
        if not (math.isfinite(worst) and math.isfinite(relative)):
            return math.inf, math.inf
        worst_abs, worst_rel = max(worst_abs, worst), max(worst_rel, relative)
    return worst_abs, worst_rel


def _compare_with_infinities(out: torch.Tensor, want: torch.Tensor, tolerance: float) -> Comparison:
    """Compare with a reference that contains infinities or NaNs, which must match. The usual tolerance applies to the
    finite elements.
    """
    finite = torch.isfinite(want)
    if bool(finite.all()):  # The squares overflow, although the elements are finite.
        size = want.abs().max()
        return _compare_one(out / size, want / size, tolerance)
    if not bool((torch.isfinite(out) == finite).all()):
        return Comparison(
            "infinities or NaNs are at different positions than in the reference", math.inf, math.inf, finite=False
        )
    if not bool((torch.nan_to_num(out[~finite]) == torch.nan_to_num(want[~finite])).all()):
        return Comparison("infinities have different signs than in the reference", math.inf, math.inf, finite=False)
    return replace(_compare_one(out[finite], want[finite], tolerance), finite=False)


def _describe(out: torch.Tensor, want: torch.Tensor, tolerance: float, rms: float) -> Comparison:
    """Describe a mismatch: the share of wrong elements, the first wrong position, and the error there."""
    broken = int((~torch.isfinite(out)).sum())
    error = (out.double() - want.double()).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    relative = error / (want.double().abs() + rms)
    bad = ~(relative <= tolerance)
    places = bad.reshape(-1).nonzero()
    if places.numel() == 0:
        return Comparison(CHANGED, math.inf, math.inf)
    first = int(places[0])
    got, goal = float(out.reshape(-1)[first]), float(want.reshape(-1)[first])
    text = f"{_share(int(bad.sum()), out.numel())} of elements differ by more than {tolerance:g}; "
    text += f"the first is at {_index(first, out.shape)}: {got:.6g}, expected {goal:.6g}"
    if broken:
        text += f"; non-finite elements: {broken:,}"
    return Comparison(text, float(error.max()), float(relative.max()))


def _share(some: int, all_: int) -> str:
    """Format a share as a percentage, with at least one decimal place, and with more if it would otherwise be rounded
    to 0% or 100%.
    """
    places = 1
    while 0 < some < all_ and float(f"{100 * some / all_:.{places}f}") in (0.0, 100.0):
        places += 1
    return f"{100 * some / all_:.{places}f}%"


def _index(flat: int, shape: Sequence[int]) -> list[int]:
    return [int(place) for place in torch.unravel_index(torch.tensor(flat), tuple(shape))]


def is_half(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's dtype is fp16 or bf16."""
    return tensor.dtype in _HALVES


def checksum(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return the sum of each tensor's 64-bit words and remaining bytes, to detect stray writes cheaply."""
    sums = []
    for tensor in tensors:
        flat = tensor.reshape(-1).view(torch.uint8)
        whole = flat.numel() // 8 * 8
        total = flat[:whole].view(torch.int64).sum()
        sums.append(total + flat[whole:].sum() if whole < flat.numel() else total)
    return tuple(torch.stack(sums).tolist()) if sums else ()  # Stacking needs only one synchronization with the device.
