"""KernelBench's rules: when its evaluator calls a kernel correct, and how fast. Pure.

From ``eval_kernel_against_ref``, ``run_and_check_correctness``, ``get_tolerance_for_precision`` and
``_process_input_tensor`` of ``src/kernelbench/eval.py``, ``src/kernelbench/timing.py`` and
``scripts/eval_from_generations.py`` of 2026-03 (commit 423217d):

- Five trials, all on inputs as ``get_inputs()`` draws them and with the weights that the model was built with.
- The reference runs first, on the very tensors that the kernel is given then. Each keeps its weights and buffers from
  one trial to the next.
- All tensors among the inputs, integers and booleans too, are cast to one precision, as the model is. It is fp32 unless
  they are told otherwise: here, the one that the problem's own tensors have.
- The one output has the reference's shape and dtype and passes ``torch.allclose(reference, kernel)``, where atol and
  rtol are 1e-4 in fp32, 1e-2 in fp16 and bf16. A NaN equals nothing. What a kernel does to its inputs is not looked at.
- Whatever raises an exception is not correct.
- Speedup is the mean time of the reference over the mean time of the kernel.

Their seeds follow from 42, so a kernel could know the inputs; nothing here depends on which seeds they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.evaluation.native import largest_errors
from engine.problem.spec import ProblemSpec

TRIALS = 5
_TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
_WELL_WITHIN = 0.9
_CHUNK = 1 << 26
"""Elements that ``allclose`` sees at once: it makes several tensors of their size."""


def precision_of(problem: ProblemSpec) -> torch.dtype | None:
    """What everything is cast to, or None where the problem's own tensors have several precisions or another one."""
    held = [getattr(torch, tensor.dtype) for tensor in (*problem.inputs, *problem.weights)]
    floating = {dtype for dtype in held if dtype.is_floating_point} or {torch.float32}
    return floating.pop() if len(floating) == 1 and floating <= _TOLERANCES.keys() else None


def tolerance_of(precision: torch.dtype) -> float:
    """Both atol and rtol."""
    return _TOLERANCES[precision]


def not_applicable(problem: ProblemSpec, module: bool) -> str:
    """Why their rules cannot say anything of a kernel, "" where they can. ``module``: it is a ``ModelNew``."""
    if len(problem.outputs) != 1:
        return f"it compares one output, the model returns {len(problem.outputs)}"
    if any(tensor.mutated for tensor in problem.inputs):
        return "the model writes its input, and it gives the kernel what the model has left there"
    if problem.random:
        return "the model draws random numbers, and it does not seed reference and kernel alike"
    if precision_of(problem) is None:
        held = sorted({tensor.dtype for tensor in (*problem.inputs, *problem.weights)})
        return f"it casts all tensors to one of fp32, fp16 and bf16; the problem's are {', '.join(held)}"
    if module and casts_integers(problem):
        return "it casts integers among the inputs to floating point, which this kernel is not given here"
    return ""


def casts_integers(problem: ProblemSpec) -> bool:
    """Whether inputs are cast that are no floating-point numbers. Exported kernels cast them back."""
    return any(not getattr(torch, tensor.dtype).is_floating_point for tensor in problem.inputs)


def mismatch(expected: torch.Tensor, out: torch.Tensor, tolerance: float) -> str:
    """Why ``out`` is not accepted beside the reference's output of the same shape and dtype, "" where it is."""
    # One pass instead of allclose's five over most outputs; what is near the tolerance is left to allclose itself.
    found = largest_errors(expected, out, 1.0)
    if found is not None and found[1] <= _WELL_WITHIN * tolerance:
        return ""
    parts = list(zip(expected.reshape(-1).split(_CHUNK), out.reshape(-1).split(_CHUNK), strict=True))
    if all(torch.allclose(want, got, atol=tolerance, rtol=tolerance) for want, got in parts):
        return ""
    if bool(expected.isnan().any()):
        return "the reference's output holds NaN, which equals nothing"
    worst = max(float((want.double() - got.double()).abs().max()) for want, got in parts)
    return f"not within atol = rtol = {tolerance:g}, the largest difference is {worst:.3g}"


def speedup(reference_ms: Sequence[float], kernel_ms: Sequence[float]) -> float | None:
    """Mean time of the reference / mean time of the kernel; None where nothing was timed."""
    total_ms = sum(kernel_ms)
    return sum(reference_ms) / len(reference_ms) / (total_ms / len(kernel_ms)) if total_ms else None
