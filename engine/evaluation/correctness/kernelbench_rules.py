"""KernelBench's rules for correctness and speedup. All functions are pure.

Sources: ``eval_kernel_against_ref``, ``run_and_check_correctness``, ``get_tolerance_for_precision`` and
``_process_input_tensor`` of ``src/kernelbench/eval.py``; ``src/kernelbench/timing.py``;
``scripts/eval_from_generations.py``; all as of 2026-03 (commit 423217d).

Five trials use the inputs that ``get_inputs()`` draws, and the model's initial weights. The reference runs first, and
the kernel then receives the same tensors. The reference and the kernel keep their own weights and buffers across
trials.

The judge casts the model and all input tensors, including integers and booleans, to one precision. KernelBench's
default is fp32; the judge uses the precision of the problem's own tensors.

The kernel's single output must have the reference's shape and dtype. ``torch.allclose(reference, kernel)`` must be
true. Both atol and rtol are 1e-4 in fp32 and 1e-2 in fp16 and bf16. NaN never matches. The kernel may change its
inputs. Any exception makes the kernel incorrect. Speedup is the reference's mean time divided by the kernel's mean
time.

KernelBench derives its seeds from 42, so its inputs are predictable. The judge uses secret seeds instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.evaluation.correctness.comparison import CHUNK, KERNELBENCH
from engine.evaluation.correctness.native import largest_errors
from engine.problem.spec import ProblemSpec

TRIALS = 5
_PRECISIONS = {torch.float32, torch.float16, torch.bfloat16}


def precision_of(problem: ProblemSpec) -> torch.dtype | None:
    """Return the precision to which the judge casts tensors, or None if the problem's tensors have mixed or unsupported
    precisions.
    """
    held = [getattr(torch, tensor.dtype) for tensor in (*problem.inputs, *problem.weights)]
    floating = {dtype for dtype in held if dtype.is_floating_point} or {torch.float32}
    return floating.pop() if len(floating) == 1 and floating <= _PRECISIONS else None


def tolerance_of(precision: torch.dtype) -> float:
    """Return the tolerance, which serves as both atol and rtol."""
    return KERNELBENCH.of(precision)


def not_applicable(problem: ProblemSpec, module: bool) -> str:
    """Return why the rules do not apply to a kernel, or "" if they apply. ``module``: whether the kernel is a
    ``ModelNew``.
    """
    if len(problem.outputs) != 1:
        return f"KernelBench compares one output, but the model returns {len(problem.outputs)}"
    if any(tensor.mutated for tensor in problem.inputs):
        return "the model writes its input, and KernelBench gives the changed input to the kernel"
    if problem.random:
        return "the model draws random numbers; KernelBench does not give the reference and the kernel the same seed"
    if precision_of(problem) is None:
        held = sorted({tensor.dtype for tensor in (*problem.inputs, *problem.weights)})
        dtypes = ", ".join(held)
        return f"KernelBench casts all tensors to one dtype: fp32, fp16 or bf16; the problem has {dtypes} tensors"
    if module and casts_integers(problem):
        return "KernelBench casts integer inputs to floating point, but this kernel expects integers"
    return ""


def casts_integers(problem: ProblemSpec) -> bool:
    """Return whether the problem has integer or boolean inputs, which KernelBench casts to floating point.

    Exported kernels cast these inputs back.
    """
    return any(not getattr(torch, tensor.dtype).is_floating_point for tensor in problem.inputs)


def mismatch(expected: torch.Tensor, out: torch.Tensor, tolerance: float) -> str:
    """Return why ``out`` does not match ``expected``, which has the same shape and dtype. Return "" if they match."""
    errors = largest_errors(out, expected, 1.0)
    if errors is not None and errors[0] <= tolerance:  # Such outputs always pass, and allclose takes longer.
        return ""
    chunk = CHUNK[out.device.type]  # allclose allocates several tensors as large as its arguments.
    parts = list(zip(expected.reshape(-1).split(chunk), out.reshape(-1).split(chunk), strict=True))
    if all(torch.allclose(want, got, atol=tolerance, rtol=tolerance) for want, got in parts):
        return ""
    if bool(expected.isnan().any()):
        return "the reference's output contains NaN, which never matches"
    worst = max(float((want.double() - got.double()).abs().max()) for want, got in parts)
    return f"the output is not within atol = rtol = {tolerance:g}; the largest difference is {worst:.3g}"


def speedup(reference_ms: Sequence[float], kernel_ms: Sequence[float]) -> float | None:
    """Return the reference's mean time divided by the kernel's mean time, or None if there are no times."""
    total_ms = sum(kernel_ms)
    return sum(reference_ms) / len(reference_ms) / (total_ms / len(kernel_ms)) if total_ms else None
