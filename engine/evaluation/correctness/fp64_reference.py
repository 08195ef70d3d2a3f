"""Accept outputs at least as accurate as eager's, measured against an fp64 run of the model.

Eager has rounding errors too. Eager rounds to fp16 or bf16 after each operator and, on a GPU, rounds the operands of
convolutions to TF32. Cancellation amplifies these errors. A kernel may differ from eager by more than the tolerance if
it rounds less often or at different steps. In this case, the judge compares the outputs with an fp64 run of the model.

An element may also be ill-conditioned: changing an input by one machine epsilon changes the element by more than the
tolerance. An example is a softmax with many large scores, the two largest of which are nearly equal. Transformed inputs
produce ill-conditioned elements at random. The judge compares the errors of these elements with eager's errors on
inputs that differ by a few machine epsilons.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from msgspec import Struct

from engine.evaluation.correctness.comparison import CHANGED, CHUNK, Comparison, Tolerances, compare, names_of, passes
from engine.evaluation.correctness.ties import Choice
from engine.evaluation.inputs.reference import Reference
from engine.evaluation.judge_policy import CorrectnessPolicy
from engine.problem.model import named_weights

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_COMPARED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, *_INTEGERS)
"""Dtypes of outputs that the judge may accept because of the fp64 run. Outputs in all other dtypes must equal eager's
outputs.
"""


class ExactOutputs(Struct, frozen=True):
    """The model's fp64 outputs for a call's inputs, and the values to which any output indices refer.

    ``chooses``: whether the model computes with indices of its largest, smallest or sorted values, for example to route
    tokens. Rounding may then replace an element with an unrelated value.
    ``policy``: the limits on a kernel's errors relative to these outputs. ``nearby``: runs eager on inputs changed at
    random by a few machine epsilons, or returns None if eager fails.
    """

    outputs: Sequence[torch.Tensor]
    choices: Sequence[Choice | None]
    chooses: bool
    policy: CorrectnessPolicy
    nearby: Callable[[], Sequence[torch.Tensor] | None] = lambda: None

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (*self.outputs, *self.choices) if one is not None)


Exact = Callable[[], ExactOutputs | None]
"""A function that runs the model in fp64, and returns None if the model does not support fp64."""


def run_in(
    dtype: torch.dtype | None,
    reference: Reference,
    inputs: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    mutated: Sequence[bool] = (),
) -> list[torch.Tensor]:
    """Run a copy of the model in ``dtype`` (None: the model's own dtype), without TF32. Inputs and weights stay
    unchanged.

    ``mutated``: for each input and weight, whether the model writes the tensor. The written tensors follow the outputs
    in the result.

    If the model casts an output explicitly, that output keeps its dtype. Raises whatever the model raises, for example
    if the model does not support fp64.
    """
    twin = reference.twin()
    if dtype is not None:
        twin.model.to(dtype)
    own = [tensor for _, tensor, _ in named_weights(twin.model)]
    with torch.no_grad():
        for tensor, value in zip(own, weights, strict=True):
            tensor.copy_(value)
    given = [tensor.to(dtype or tensor.dtype if tensor.is_floating_point() else None, copy=True) for tensor in inputs]
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)  # The model may create tensors without naming a dtype.
    try:
        with without_tf32():
            outputs = list(twin.run(twin.with_tensors(given)))
    finally:
        torch.set_default_dtype(before)
    return outputs + [tensor for tensor, is_mutated in zip((*given, *own), mutated, strict=False) if is_mutated]


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Disable TF32 for matrix products and convolutions inside the context."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = False
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def compare_in_double(
    outputs: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    exact: Exact,
    tolerances: Tolerances,
    names: Sequence[str] = (),
) -> Comparison:
    """Return the errors against fp64 if all outputs are correct, otherwise describe the first wrong output. Call this
    function only after a comparison with eager has failed.

    An output is correct if it is within the tolerance of eager's output. If the model supports fp64, an output is also
    correct if it is as accurate as eager's (:class:`_Suspect`). Indices are also correct if they refer to equal values.
    Other integers are also correct if an accurate run returns them.
    """
    suspects = [place for place, pair in enumerate(zip(outputs, eager, strict=True)) if not passes(*pair, tolerances)]
    found = _errors_or_wrong(suspects, outputs, eager, exact, tolerances)
    if isinstance(found, Comparison):
        return found
    described = compare([outputs[found]], [eager[found]], tolerances, names_of(outputs, names)[found : found + 1])
    # If the output is correct now, another process changed it after the failed comparison.
    return described if described.problem is not None else Comparison(CHANGED, math.inf, math.inf)


def _errors_or_wrong(
    suspects: Sequence[int],
    outputs: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    exact: Exact,
    tolerances: Tolerances,
) -> Comparison | int:
    """Return the errors of the outputs ``suspects`` against fp64, or the index of a wrong output."""
    for place in suspects:
        if outputs[place].dtype not in _COMPARED:
            return place
    right = exact()
    if right is None or len(right.outputs) < len(outputs):
        # Without suspects, another process changed an output after the comparison failed.
        return next(iter(suspects), 0)
    inaccurate = dict[int, _Suspect]()
    for place in suspects:
        out = outputs[place]
        own, want, tolerance = eager[place].reshape(out.shape), right.outputs[place], tolerances.of(out.dtype)
        if out.is_floating_point():
            inaccurate[place] = _Suspect(out, own, want.reshape(out.shape), tolerance, right.policy)
            continue
        choice = right.choices[place]
        tied = choice is not None and choice.is_tied(out, own, tolerance, right.policy)
        if not tied and not _agrees_with_a_run(place, out, own, want.reshape(out.shape), right):
            return place
    if (wrong := _first_wrong(inaccurate, right)) is not None:
        return wrong
    errors = [suspect.errors() for suspect in inaccurate.values()]
    return Comparison(None, max((one for one, _ in errors), default=0.0), max((one for _, one in errors), default=0.0))


def _agrees_with_a_run(
    place: int, out: torch.Tensor, own: torch.Tensor, want: torch.Tensor, right: ExactOutputs
) -> bool:
    """Return whether eager, fp64, or eager on nearby inputs returns each of the integers or booleans in ``out``.

    Rounding errors can change an integer or boolean only if the number that determines it is near a boundary. In this
    case, the results of these runs usually differ, too.
    """
    wrong = (out != own) & (out != want)
    if int(wrong.count_nonzero()) > right.policy.slight_share * out.numel():
        return False
    for _ in range(right.policy.nearby):
        if not bool(wrong.any()):
            return True
        if (nearby := right.nearby()) is None:
            return False
        wrong &= out != nearby[place].reshape(out.shape)
    return not bool(wrong.any())


def _first_wrong(suspects: dict[int, _Suspect], right: ExactOutputs) -> int | None:
    """Return the index of the first inaccurate output, or None if all suspect outputs are accurate. If necessary, run
    eager on nearby inputs first.

    If ``right.chooses`` is true, errors can be large at first: each run makes the same choice as the kernel only by
    chance.
    """
    most = right.policy.nearby_choosing if right.chooses else right.policy.nearby
    for runs in range(most + 1):
        wrong = [place for place, suspect in suspects.items() if not suspect.is_right()]
        if not wrong:
            return None
        if runs == 2 and not right.chooses:
            hopeless = [place for place in wrong if suspects[place].is_hopeless()]
            if hopeless:
                return hopeless[0]
        nearby = right.nearby() if runs < most else None
        if nearby is None:
            break
        for place, suspect in suspects.items():
            suspect.compare_nearby(nearby[place])
    return wrong[0]


class _Part(Struct):
    """Consecutive elements of a :class:`_Suspect`. All errors are relative to ``size``.

    ``own``: the kernel's errors. ``eagers``: eager's errors. ``nearby``: eager's largest errors so far on nearby
    inputs. ``finite``: whether eager's element, and fp64's element rounded to the output's dtype, are finite. ``same``:
    whether the kernel's element is within the tolerance of eager's element, or equals eager's or fp64's element.
    """

    own: torch.Tensor
    eagers: torch.Tensor
    nearby: torch.Tensor
    finite: torch.Tensor
    same: torch.Tensor
    size: torch.Tensor

    def where_finite(self, values: torch.Tensor) -> torch.Tensor:
        """Return ``values`` with zeros where ``finite`` is False."""
        return torch.where(self.finite, values, 0.0)


class _Suspect:
    """An output that is not within the tolerance of ``eager``, with limits on the errors of its elements.

    An element passes if it is within the tolerance of eager's element. Otherwise, its error against fp64 may not exceed
    the largest of three limits. The limits are the tolerance, a multiple of eager's error at that element, and a
    multiple of eager's largest error. The mean error must not be much larger than eager's mean error. If eager or fp64
    overflows, the element must equal eager's or fp64's element, or be within the tolerance of fp64.

    At an ill-conditioned element, eager's error depends on chance. The kernel's error may therefore be as large as
    eager's error on nearby inputs.

    All methods process the output in parts, because a large output in fp64 already fills much of a GPU's memory.
    """

    def __init__(
        self, out: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, tolerance: float, policy: CorrectnessPolicy
    ) -> None:
        # Copy the output, because a kernel that writes late could change the original between two passes.
        self._out = out.reshape(-1).clone()
        self._eager, self._exact = eager.reshape(-1), exact.reshape(-1)
        self._tolerance, self._policy = tolerance, policy
        self._nearby: torch.Tensor | None = None
        self._single_part: _Part | None = None
        """The output's errors if the output has a single part, otherwise None."""
        chunk = CHUNK[out.device.type]
        self._spans = [slice(start, start + chunk) for start in range(0, out.numel(), chunk)]
        squares, count, noise = 0.0, 0, 0.0
        for span in self._spans:
            right, theirs = self._exact[span].double(), self._eager[span].double()
            representable = torch.isfinite(self._rounded(span))
            squares += float(torch.where(representable, right, 0.0).square().sum())
            count += int(representable.count_nonzero())
            noise = max(noise, float(torch.where(representable & torch.isfinite(theirs), theirs, 0.0).abs().max()))
        self._scale = math.sqrt(squares / count) if count else 0.0
        if self._scale <= policy.vanishing * noise:
            # Relative to zero, every error would be infinite. This scale permits a multiple of eager's largest error.
            self._scale = policy.largest * noise / policy.most

    def _rounded(self, span: slice) -> torch.Tensor:
        return self._exact[span].to(self._out.dtype).double()

    def _parts(self) -> Iterator[_Part]:
        for span in self._spans:
            part = self._single_part or self._part(span)
            self._single_part = part if len(self._spans) == 1 else None
            if self._nearby is not None:
                part.nearby = self._nearby[span]
            yield part

    def _part(self, span: slice) -> _Part:
        right, rounded = self._exact[span].double(), self._rounded(span)
        mine, theirs = self._out[span].double(), self._eager[span].double()
        size = right.abs() + self._scale
        own, eagers = (_relative(one - right, size) for one in (mine, theirs))
        same = _relative(mine - theirs, size) <= self._tolerance
        same |= _same(mine, theirs) | _same(mine, rounded)
        finite = torch.isfinite(rounded) & torch.isfinite(theirs)
        return _Part(own, eagers, torch.zeros_like(own), finite, same, size)

    def is_right(self) -> bool:
        """Return whether the errors of all elements, and their mean, are within the limits."""
        policy, count, worst = self._policy, 0, 0.0
        sums = [0.0, 0.0, 0.0]
        for part in self._parts():
            count += int(part.finite.count_nonzero())
            worst = max(worst, float(part.where_finite(part.eagers).max()))
            for index, errors in enumerate((part.own, part.eagers, part.nearby)):
                sums[index] += float(part.where_finite(errors).sum())
        least = max(self._tolerance, min(policy.largest * worst, policy.most))
        for part in self._parts():
            allowed = torch.maximum(policy.multiple * part.eagers, part.nearby).clamp(min=least)
            if not bool(((part.own <= torch.where(part.finite, allowed, self._tolerance)) | part.same).all()):
                return False
        if count == 0:
            return True
        own, eagers, nearby = (one / count for one in sums)
        return own <= max(policy.mean * eagers, nearby, policy.harmless * self._tolerance)

    def is_hopeless(self) -> bool:
        """Return whether the errors are too large for more runs on nearby inputs to explain."""
        least = torch.finfo(torch.float32).eps
        for part in self._parts():
            reached = torch.maximum(part.eagers, part.nearby).clamp(min=least)
            if bool((part.finite & ~part.same & (part.own > self._policy.hopeless * reached)).any()):
                return True
        return False

    def compare_nearby(self, output: torch.Tensor) -> None:
        """Raise the limits if eager's error on nearby inputs is larger than before."""
        output = output.reshape(-1)
        if self._nearby is None:
            self._nearby = torch.zeros_like(self._exact, dtype=torch.float64)
        for span in self._spans:
            right, nearby = self._exact[span].double(), self._nearby[span]
            error = _relative(output[span].double() - right, right.abs() + self._scale)
            error *= 1 + self._tolerance  # A run and a kernel that make the same choice still differ by rounding.
            torch.maximum(nearby, error.nan_to_num(0.0, 0.0, 0.0), out=nearby)

    def errors(self) -> tuple[float, float]:
        """Return the largest absolute error against fp64, and the largest error relative to rms + magnitude."""
        absolute = relative = 0.0
        for part in self._parts():
            absolute = max(absolute, float(part.where_finite(part.own * part.size).max()))
            relative = max(relative, float(part.where_finite(part.own).max()))
        return absolute, relative


def _relative(error: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    return torch.where(error == 0, 0.0, error.abs() / size)


def _same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one == other) | (one.isnan() & other.isnan())
