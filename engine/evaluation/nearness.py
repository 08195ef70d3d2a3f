"""Who rounds less than eager is right: answers beside the model in fp64.

Where eager rounds every step to fp16 or bf16, or cancels most of its digits, it is itself off by more than the
tolerance, and so from it is a kernel that keeps fp32 between the steps. Asked only of answers that are not eager's
within the tolerance, so what is right there costs nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from msgspec import Struct

from engine.evaluation.checks import Comparison, Tolerances, compare
from engine.evaluation.ties import Choice


class Doubled(Struct, frozen=True):
    """The model's outputs in fp64 for the inputs of a call, and what those were chosen from that are indices."""

    outputs: Sequence[torch.Tensor]
    choices: Sequence[Choice | None]

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (*self.outputs, *self.choices) if one is not None)


Exact = Callable[[], Doubled | None]
"""Asks for them; None where there are none."""

_MARGIN = 1.25
"""Errors whose means differ by less are equally large: who rounds as often as eager, elsewhere, is no worse."""
_MOST = 10.0
"""Where eager is off by more than so many times the tolerance it says nothing of how far a kernel may be off."""
_SAMPLED = 1 << 14
_LOOKED_AT = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64)
"""Outputs in other dtypes must be eager's."""


def compare_in_double(
    outputs: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Exact, tolerances: Tolerances
) -> Comparison | None:
    """The errors against fp64 where each output is eager's within the tolerance, or as near to fp64 as eager's, or
    indices of the same values; None where one is none of that, or there is no fp64."""
    suspects = [place for place, pair in enumerate(zip(outputs, eager, strict=True)) if _is_off(*pair, tolerances)]
    if any(outputs[place].dtype not in _LOOKED_AT for place in suspects):
        return None
    right = exact()
    if right is None or len(right.outputs) != len(outputs):
        return None
    worst_abs = worst_rel = 0.0
    for place in suspects:
        out, want = outputs[place].clone(), right.outputs[place].reshape(outputs[place].shape)
        own, tolerance = eager[place].reshape(out.shape), tolerances.of(out.dtype)
        if not out.is_floating_point():
            choice = right.choices[place]
            if choice is None or not choice.is_tied(out, own, tolerance):
                return None
            continue
        if _looks_worse(out, own, want):
            return None
        found = errors_if_as_near(out, own, want, tolerance)
        if found is None:
            return None
        worst_abs, worst_rel = max(worst_abs, found[0]), max(worst_rel, found[1])
    return Comparison(None, worst_abs, worst_rel)


def errors_if_as_near(
    out: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, tolerance: float
) -> tuple[float, float] | None:
    """The largest errors of ``out``, absolute and relative to rms + magnitude, if it is as near to ``exact`` as
    ``eager`` is; None if not.

    In the mean it must be as near, and nowhere farther off than the tolerance or eager's own largest error. Where eager
    or fp64 overflows, it is the one or the other.
    """
    mine, theirs, right = out.double(), eager.double(), exact.double()
    rounded = exact.to(out.dtype).double()
    plain = torch.isfinite(rounded) & torch.isfinite(theirs)
    finite = right[torch.isfinite(rounded)]
    size = right.abs() + (float(finite.square().mean().sqrt()) if finite.numel() else 0.0)
    own, eagers = _relative(mine, right, size), _relative(theirs, right, size)
    overflown = _same(mine, theirs) | _same(mine, rounded) | (own <= tolerance)
    if not bool((plain | overflown).all()):
        return None
    own, eagers = own[plain], eagers[plain]
    if not own.numel():
        return 0.0, 0.0
    worst, most = float(own.max()), min(float(eagers.max()), _MOST * tolerance)
    if not (worst <= max(tolerance, most) and float(own.mean()) <= _MARGIN * float(eagers.mean())):
        return None
    return float((mine - right)[plain].abs().max()), worst


def _looks_worse(out: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """The same question of a sample: most that is wrong is wrong everywhere, and fp64 is slow."""
    step = max(1, out.numel() // _SAMPLED)
    mine, theirs, right = (tensor.reshape(-1)[::step].double() for tensor in (out, eager, exact))
    finite = torch.isfinite(mine) & torch.isfinite(theirs) & torch.isfinite(right)
    own, eagers = (mine - right).abs()[finite], (theirs - right).abs()[finite]
    return own.numel() > 0 and float(own.mean()) > 2 * _MARGIN * float(eagers.mean())


def _is_off(out: torch.Tensor, eager: torch.Tensor, tolerances: Tolerances) -> bool:
    found = compare([out], [eager], math.inf)  # which puts nothing into words, as that takes long
    return found.problem is not None or not found.max_rel_error <= tolerances.of(out.dtype)


def _relative(values: torch.Tensor, right: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    error = (values - right).abs()
    return torch.where(error == 0, error, error / size)


def _same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one == other) | (one.isnan() & other.isnan())
