"""Validate a kernel's outputs and the memory around them.

The judge calls these checks after every trial, timed pair and batch; ``comparison.py`` compares the values. If
possible, the checks name the exploit or mistake that caused a wrong output.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.evaluation.correctness import comparison
from engine.evaluation.correctness.fp64_reference import Exact, compare_in_double
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.rejection import Rejected
from engine.evaluation.sandbox.arena import Slot

PROPERTY = "uses a property of the inputs"
CHANGED = "wrong after its first calls"
OUTLIERS = "wrong only with outliers"
_POLICY = POLICY.correctness


def check_writes(slot: Slot) -> None:
    """Raise ``Rejected`` if the kernel wrote outside the slot's buffers."""
    if (damage := slot.damaged_redzone()) is not None:
        raise Rejected("out_of_bounds", "writes out of bounds", damage)


class Answers:
    """One kernel's outputs. ``errors``: the largest absolute and relative errors so far, or None before the first
    comparison.

    ``nearer``: the number of calls whose outputs are too far from eager's outputs but close to the fp64 outputs.
    """

    def __init__(self, tolerances: comparison.Tolerances) -> None:
        self.errors: tuple[float, float] | None = None
        self.nearer = 0
        self._tolerances = tolerances
        self._passed = False

    def check(
        self,
        problem: JudgedProblem,
        slot: Slot,
        expected: list[torch.Tensor],
        poison: int,
        where: str,
        exact: Exact,
        *,
        as_drawn: bool = True,
    ) -> None:
        """Raise ``Rejected`` with the failure pattern if the slot's results differ from ``expected``.

        ``poison``: the index of the poison pattern that filled the outputs before the call. ``exact``: returns fp64
        outputs; called only after a mismatch. ``as_drawn``: whether the inputs are exactly as the problem draws them.
        """
        worst_abs, worst_rel = self.errors or (0.0, 0.0)
        count = problem.result_count
        results = slot.results[:count]
        found = comparison.compare(results, expected[:count], self._tolerances, slot.result_names[:count])
        # Poison is NaN. If the reference also contains NaN, comparing values cannot distinguish poison from an output.
        doubtful = found.problem is not None or not found.finite
        unwritten = slot.unwritten(poison, expected[: len(slot.outputs)]) if doubtful else None
        if unwritten is not None:
            raise Rejected("wrong", "leaves output unwritten", f"{unwritten} ({where})")
        if found.problem is not None:
            if problem.mutates:  # The comparison with fp64 runs the model, which writes the slot's inputs.
                results = [tensor.clone() for tensor in results]
            names = slot.result_names[:count]
            found = compare_in_double(results, expected[:count], exact, self._tolerances, names)
            self.nearer += found.problem is None
        self.errors = max(worst_abs, found.max_abs_error), max(worst_rel, found.max_rel_error)
        if found.problem is not None:
            pattern = _look_of(results, expected[:count], slot.inputs)
            if pattern is None and self._passed and not _is_slight(results, expected[:count]):
                only_inputs_differ = not as_drawn and not slot.weights
                pattern = PROPERTY if only_inputs_differ else CHANGED
            raise Rejected("wrong", pattern, f"{found.problem} ({where})")
        self._passed = True


def _look_of(
    outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> str | None:
    """Return the failure pattern that wrong outputs show, or None if they match no known pattern."""
    if any(
        not torch.equal(*(one.isfinite().reshape(-1) for one in pair)) for pair in zip(outputs, expected, strict=True)
    ):
        return "NaN or infinity differs"
    if all(_constant(out) and not _constant(want) for out, want in zip(outputs, expected, strict=True)):
        return "constant output"
    pairs = [(out, one) for out in outputs for one in inputs if (out.shape, out.dtype) == (one.shape, one.dtype)]
    return "copies its input" if any(torch.equal(out, one) for out, one in pairs) else None


def _is_slight(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Return whether rounding can explain the errors. If so, the errors are not evidence of cheating."""
    usual = comparison.KERNELBENCH
    slight = comparison.Tolerances(_POLICY.slight * usual.full, _POLICY.slight * usual.half)
    for out, want in zip(outputs, expected, strict=True):
        if out.is_floating_point():
            if not comparison.passes(out, want, slight):
                return False
        elif int((out != want).count_nonzero()) > _POLICY.slight_share * out.numel():
            return False
    return True


def _constant(tensor: torch.Tensor) -> bool:
    flat = tensor.reshape(-1)
    return flat.numel() > 1 and bool((flat == flat[0]).all())
