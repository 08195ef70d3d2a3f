"""Classify a kernel's precision by its error against fp64, relative to eager's error.

The module examines outputs of timed calls after all calls have finished, so a kernel cannot recognize the measured
calls. For each measured call, the model runs in fp64, in fp32 without TF32, and in fp32 on operands rounded to TF32.
The threshold for fp32 lies between the errors of the two fp32 runs. A sequential sum in fp32 passes; products in TF32,
fp16 or bf16 fail. Inputs with mean zero reveal precision best, because large sums would hide the errors in single
terms.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Sequence

import torch
from msgspec import Struct

from engine.evaluation.correctness.conditioning import result_of
from engine.evaluation.correctness.fp64_reference import without_tf32
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge_policy import PrecisionPolicy
from engine.evaluation.sandbox.arena import Slot
from engine.problem.spec import ProblemSpec
from engine.session.records.verdict import precision_in_words

CLASSES = ("fp64", "fp32", "tf32/fp16", "bf16", "below bf16")
"""Precision classes, most precise first. TF32 and fp16 have mantissas of the same width."""
_HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class Precision(Struct, frozen=True):
    """A kernel's measured precision. ``name``: the class, or "" if it was not measured (see ``note``).

    ``error``, ``eager_error``: root mean square errors, relative to the root mean square of the outputs.
    ``sufficient``: whether the kernel is at least as precise as fp32, or as eager if the outputs are fp16 or bf16. Also
    True if the precision was not measured.
    """

    name: str
    error: float = 0.0
    eager_error: float = 0.0
    sufficient: bool = True
    note: str = ""

    @property
    def words(self) -> str:
        if not self.name:
            return f"not measured: {self.note}"
        return precision_in_words(self.name, self.error, self.eager_error)


class OutputErrors(Struct, frozen=True):
    """One output's root mean square errors against fp64, relative to the output's root mean square.

    ``kernel``, ``eager``: the errors of the kernel and of eager. ``rounded``: the model's error on operands rounded to
    TF32. ``length``: the number of terms in the sums that produce the output.
    """

    dtype: torch.dtype
    length: float
    kernel: float
    eager: float
    rounded: float

    def class_by(self, policy: PrecisionPolicy) -> str:
        """Return the precision class. For fp16 or bf16 outputs as precise as eager's, the class is fp32."""
        own = max(self.eager, policy.step)
        if self.dtype in _HALVES:
            return "fp32" if self.kernel <= policy.same * own else "below bf16"
        if self.dtype == torch.float64 and self.kernel <= policy.fp64:
            return "fp64"
        # If rounding the operands has little effect, as in a sum of nearly equal values, use only the error itself.
        sequential = max(policy.sequential * math.sqrt(self.length), policy.least_sequential)
        least = sequential if self.rounded > policy.shows * own else policy.tf32 / policy.below_tf32
        if self.kernel <= max(policy.same * own, self.rounded / policy.below_tf32, least):
            return "fp32"
        coarse = max(self.rounded, policy.tf32)
        if self.kernel <= policy.tf32_spread * coarse:
            return "tf32/fp16"
        return "bf16" if self.kernel <= policy.bf16_spread * coarse else "below bf16"


class TimedCall(Struct, frozen=True):
    """Sampled output elements from one timed call. ``load`` restores the call's inputs and weights in ``slot``."""

    slot: Slot
    load: Callable[[], object]
    answered: list[torch.Tensor]


class PrecisionClassifier:
    """Measure the precision of one kernel for ``problem`` on a random sample of the timed calls (reservoir sampling).

    ``required``: whether the kernel must be as precise as fp32.
    """

    def __init__(self, problem: JudgedProblem, eager_ms: float | None, required: bool = False) -> None:
        self._problem, self._required, self._policy = problem, required, problem.policy.precision
        self._length = _length_of_sums(problem.spec)
        self._calls: list[TimedCall] = []
        self._offered = 0
        most = self._policy.sampled
        self._places = [
            torch.randint(tensor.numel(), (most,), device=tensor.device) if tensor.numel() > most else slice(None)
            for tensor in _floating(problem.arena.slots[0].outputs)
        ]
        self._note = self._refusal(eager_ms)

    def offer(self, slot: Slot, load: Callable[[], object]) -> None:
        """Add the last call on ``slot`` to the random sample, or skip the call. ``load`` restores the call's inputs and
        weights.
        """
        self._offered += 1
        most = self._policy.calls_required if self._required else self._policy.calls
        place = len(self._calls) if len(self._calls) < most else secrets.randbelow(self._offered)
        if place < most:
            self._calls[place : place + 1] = [TimedCall(slot, load, self._sampled(slot.outputs))]

    def measure(self) -> Precision:
        """Return the precision of the sampled calls.

        The result ignores a single imprecise call, because a sum near zero may be the cause.

        Out-of-memory errors propagate.
        """
        if note := self._note or ("" if self._calls else "no timed call had suitable inputs"):
            return Precision("", note=note)
        policy, found = self._policy, list[OutputErrors]()
        least = policy.agreeing if self._required else 1
        until = time.perf_counter() + (policy.most_s_required if self._required else policy.most_s)
        for number, call in enumerate(random.sample(self._calls, len(self._calls))):
            if number >= least and time.perf_counter() > until:
                break
            errors = result_of(lambda call=call: self._errors(call))  # type: ignore[misc]
            if errors is None:
                return Precision("", note="the model does not run in fp64, or it explicitly casts to another dtype")
            if errors:
                found.append(max(errors, key=self._rank))
        if not found:
            return Precision("", note="the model has no output with finite, nonzero values")
        return self._precision(sorted(found, key=self._rank)[-min(policy.agreeing, len(found))])

    def _rank(self, errors: OutputErrors) -> tuple[int, float]:
        return CLASSES.index(errors.class_by(self._policy)), errors.kernel / max(errors.eager, self._policy.step)

    def _precision(self, errors: OutputErrors) -> Precision:
        name = errors.class_by(self._policy)
        sufficient = name in ("fp64", "fp32")
        if (own := _HALVES.get(errors.dtype)) is not None:
            name = own if sufficient else f"below {own}"
        return Precision(name, errors.kernel, errors.eager, sufficient)

    def _errors(self, call: TimedCall) -> list[OutputErrors] | None:
        """Return the errors of each finite, nonzero output, or None if the model casts explicitly."""
        problem, slot = self._problem, call.slot
        with without_tf32():
            call.load()
            exact = self._sampled(problem.run_exactly(slot.inputs, slot.weights))
            if any(right.dtype not in (torch.float64, problem.exact_dtype) for right in exact):
                return None
            eager = self._sampled(problem.run(slot))
            if problem.mutates:
                call.load()
            for tensor in (*slot.inputs, *slot.weights):
                tensor.copy_(_as_tf32(tensor))
            rounded = self._sampled(problem.run(slot))
        errors = [
            OutputErrors(own.dtype, self._length, *_relative_errors(right, (answer, own, off)))
            for right, answer, own, off in zip(exact, call.answered, eager, rounded, strict=True)
        ]
        return [one for one in errors if math.isfinite(one.eager + one.rounded)]

    def _sampled(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return copies of the sampled elements of each floating-point output."""
        pairs = zip(_floating(outputs), self._places, strict=True)
        return [tensor.reshape(-1)[places].clone() for tensor, places in pairs]

    def _refusal(self, eager_ms: float | None) -> str:
        most_ms = self._policy.most_eager_ms_required if self._required else self._policy.most_eager_ms
        if self._problem.spec.random:
            return "the model draws random numbers"
        if not self._places:
            return "the model has no floating-point output"
        if eager_ms is None or eager_ms > most_ms:
            return f"the model is too slow: it takes more than {most_ms:g} ms"
        return ""


def _relative_errors(exact: torch.Tensor, outputs: Sequence[torch.Tensor]) -> list[float]:
    """Return each output's root mean square error, relative to the root mean square of ``exact``.

    The function ignores elements at which ``exact`` is not finite. If another element's error is not finite, the
    output's error is infinite.
    """
    finite = torch.isfinite(exact)
    right = exact[finite].double()
    size = right.norm()
    errors = [float((out[finite].double() - right).norm() / size) for out in outputs]
    return [error if math.isfinite(error) else math.inf for error in errors]


def _length_of_sums(spec: ProblemSpec) -> float:
    """Estimate the number of terms per sum from the problem's shapes. The estimate is exact for reductions and matrix
    products.
    """
    first, second = sorted([*(tensor.numel for tensor in (*spec.inputs, *spec.weights)), 0, 0])[:-3:-1]
    outputs = max(min(tensor.numel for tensor in spec.outputs), 1)
    return max(first / outputs, math.sqrt(first * second / outputs))


def _floating(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]


def _as_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Return fp32 and fp64 tensors rounded to TF32's ten mantissa bits, in their own dtype. Return tensors of other
    dtypes unchanged.
    """
    if tensor.dtype == torch.float64:
        return _as_tf32(tensor.float()).double()
    if tensor.dtype != torch.float32:
        return tensor
    return ((tensor.view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32)
