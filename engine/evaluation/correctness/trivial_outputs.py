"""Try trivial outputs, such as zeros, when the judge opens a problem. If trivial outputs pass, a fast kernel for the
problem means little.

Some KernelBench problems have outputs that are zero or constant. The judge compares trivial outputs in the same trials
as a kernel's outputs. No kernel needs to run, because a kernel that computes nothing writes predictable outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from engine.evaluation.correctness.comparison import Tolerances, passes
from engine.evaluation.correctness.trials import JudgedProblem

Outputs = list[torch.Tensor]
Written = Callable[[int], Outputs | None]
"""A function that returns each output's elements in a trial (one element if all are equal), or None if inapplicable."""


def try_trivial_outputs(problem: JudgedProblem, tolerances: Tolerances) -> str:
    """Describe the first trivial outputs that pass all trials. Returns "" if all trivial outputs fail."""
    count = len(problem.spec.outputs)
    if not any(tensor.numel() for tensor in problem.trial(0).expected[:count]):
        return "kernels that write nothing"
    return next((name for name, written in _trivial(problem, count) if _pass(problem, written, tolerances)), "")


def _trivial(problem: JudgedProblem, count: int) -> Iterator[tuple[str, Written]]:
    """Yield the names of trivial outputs, in the plural, with their values."""

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
        yield "the outputs of the previous call", lambda trial: expected(trial - 1 if trial else problem.trials - 1)


def _typical(tensor: torch.Tensor) -> torch.Tensor:
    """Return one typical element: the mean or, for integers and booleans, the first element."""
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return tensor.reshape(-1)[:1].clone()
    return tensor.mean(dtype=max(tensor.dtype, torch.float32, key=lambda dtype: dtype.itemsize)).to(tensor.dtype)


def _pass(problem: JudgedProblem, written: Written, tolerances: Tolerances) -> bool:
    """Return whether all trials accept the outputs."""
    for trial in range(problem.trials):
        if (outputs := written(trial)) is None:
            return False
        for out, want in zip(outputs, problem.trial(trial).expected, strict=False):
            if want.numel() == 0:
                continue
            whole = out if out.shape == want.shape else out.expand(want.shape).contiguous()
            if not passes(whole, want, tolerances):
                return False
    return True
