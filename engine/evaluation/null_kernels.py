"""Kernels that compute nothing, tried on a problem when it is opened: one that passes shows what a win there is worth.

KernelBench has problems whose answer is zero, or the same whatever comes in. No kernel is built: what a null kernel
would write is known, and is compared as a kernel's outputs are, in the same trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from msgspec import Struct

from engine.evaluation.checks import Tolerances, compare, root_mean_square
from engine.evaluation.trials import JudgedProblem

_SAMPLED = 2048
"""Elements of each output that are looked at first: nearly all null kernels are found wrong there."""
_ROOM = 2.0
"""A tolerance that is tightened is so many times smaller than the null kernel's largest error."""
_LEAST_FULL, _LEAST_HALF_STEPS = 1e-4, 4.0
"""No tolerance is made tighter than this, in fp32 (KernelBench's own); in steps of the dtype for fp16 and bf16."""

Outputs = list[torch.Tensor]
Null = Callable[[int], Outputs | None]
"""What a null kernel writes in a trial: for each output its elements, or one that stands for all. None: there is no
such kernel for the problem."""


class NullResult(Struct, frozen=True):
    """What the null kernels came to.

    ``degenerate``: in words the one that passes all trials, "" if none does. ``tightened``: in words the one that
    passes no more, now that the tolerances are ``tolerances``.
    """

    tolerances: Tolerances
    degenerate: str = ""
    tightened: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """Remarks for each verdict on the problem."""
        if self.degenerate:
            return (f"degenerate problem: {self.degenerate} pass every check",)
        return (self.tightened,) if self.tightened else ()


def try_null_kernels(problem: JudgedProblem, tolerances: Tolerances) -> NullResult:
    """Try all of them; where only the tolerance lets some pass, tighten it as far as honest rounding allows."""
    count = len(problem.spec.outputs)
    if not any(tensor.numel() for tensor in problem.trial(0).expected[:count]):
        return NullResult(tolerances, degenerate="kernels that write nothing")
    result = NullResult(tolerances)
    for name, null in _null_kernels(problem, count):
        error = _error_where_it_passes(problem, null, result.tolerances)
        if error is None:
            continue
        tighter = _tightened(problem, result.tolerances, error / _ROOM)
        if tighter is None:
            return NullResult(tolerances, degenerate=name)
        words = f"tolerance tightened to {min(tighter.full, tighter.half):.1g}: {name} would pass with more"
        result = NullResult(tighter, tightened=words)
    return result


def _null_kernels(problem: JudgedProblem, count: int) -> Iterator[tuple[str, Null]]:
    """Names (a plural) with what they write."""

    def expected(trial: int) -> Outputs:
        return problem.trial(trial).expected[:count]

    first = expected(0)
    constants = [_typical(tensor) for tensor in first]
    zeros = [torch.zeros_like(constant) for constant in constants]

    def inputs(trial: int, place: int) -> Outputs | None:
        given = [*problem.trial(trial).inputs, *problem.trial(trial).weights][place]
        if any(given.numel() != want.numel() or given.dtype != want.dtype for want in first):
            return None
        return [given.reshape(want.shape) for want in first]

    yield "zeros", lambda _: zeros
    yield "constants", lambda _: constants
    if all(want.numel() > 1 for want in first):
        yield "the means of the outputs", lambda trial: [_typical(want) for want in expected(trial)]
    for place, spec in enumerate((*problem.spec.inputs, *problem.spec.weights)):
        yield f"copies of {spec.name}", lambda trial, place=place: inputs(trial, place)  # type: ignore[misc]
    if problem.trials > 1:
        yield "the outputs of the call before", lambda trial: expected(trial - 1 if trial else problem.trials - 1)


def _typical(tensor: torch.Tensor) -> torch.Tensor:
    """One element: the mean; of integers and booleans the first."""
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return tensor.reshape(-1)[:1].clone()
    return tensor.mean(dtype=max(tensor.dtype, torch.float32, key=lambda dtype: dtype.itemsize)).to(tensor.dtype)


def _error_where_it_passes(problem: JudgedProblem, null: Null, tolerances: Tolerances) -> float | None:
    """The largest relative error in all trials, None if the null kernel fails in one. 0: nothing tells it apart."""
    wholes = []
    for trial in range(problem.trials):
        written = null(trial)
        if written is None:
            return None
        pairs = list(zip(written, problem.trial(trial).expected, strict=False))
        if not all(_passes_sampled(out, want, tolerances.of(want.dtype)) for out, want in pairs):
            return None
    for trial in range(problem.trials):
        written = null(trial) or []
        expected = problem.trial(trial).expected[: len(written)]
        whole = [
            out if out.shape == w.shape else out.expand(w.shape).contiguous()
            for out, w in zip(written, expected, strict=True)
        ]
        found = compare(whole, expected, tolerances)
        if found.problem is not None:
            return None
        wholes.append(found.max_rel_error)
    return max(wholes, default=0.0)


def _passes_sampled(out: torch.Tensor, want: torch.Tensor, tolerance: float) -> bool:
    """Whether a sample of the elements passes: quick, and right where it says no."""
    step = max(1, want.numel() // _SAMPLED)
    goal = want.reshape(-1)[::step]
    mine = out.reshape(-1)[::step] if out.numel() == want.numel() else out.expand(goal.shape)
    if not want.is_floating_point():
        return bool(torch.equal(mine, goal))
    mine, goal = mine.double(), goal.double()
    near = (mine - goal).abs() <= tolerance * (root_mean_square(want) + goal.abs())
    return bool((near | (mine == goal) | (mine.isnan() & goal.isnan())).all())


def _tightened(problem: JudgedProblem, tolerances: Tolerances, wanted: float) -> Tolerances | None:
    """``tolerances`` with ``wanted`` for the dtypes of the outputs, None where honest kernels would fail with it."""
    full, half = tolerances.full, tolerances.half
    for spec in problem.spec.outputs:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if not dtype.is_floating_point:
            return None
        if dtype in (torch.float16, torch.bfloat16):
            if wanted < _LEAST_HALF_STEPS * torch.finfo(dtype).eps:
                return None
            half = min(half, wanted)
        else:
            if wanted < _LEAST_FULL:
                return None
            full = min(full, wanted)
    return Tolerances(full, half)
