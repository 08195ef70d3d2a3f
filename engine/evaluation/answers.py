"""What a kernel left in a slot, looked at: its answers beside the reference's, and memory that is not its own.

Called after every trial, timed pair and row (``judging.py``, ``rows.py``); the comparison itself is in ``checks.py``.
"""

from __future__ import annotations

import torch

from engine.evaluation import checks, patterns
from engine.evaluation.arena import Slot
from engine.evaluation.nearness import Exact, compare_in_double
from engine.evaluation.rejected import Rejected
from engine.evaluation.trials import JudgedProblem

_LEAST_KEPT = 4
"""Right answers that are remembered, to name a kernel that gives one of them again; one for each slot at least."""


def check_writes(slot: Slot) -> None:
    """Raises Rejected for a write before or behind the slot's buffers."""
    if (damage := slot.damaged_guard()) is not None:
        raise Rejected("out_of_bounds", "writes out of bounds", damage)


class Answers:
    """One kernel's answers. ``errors``: largest so far, absolute and relative; None until outputs were compared.

    ``nearer``: how many were not eager's within the tolerance, but as near to fp64 as those.
    """

    def __init__(self, tolerances: checks.Tolerances) -> None:
        self.errors: tuple[float, float] | None = None
        self.nearer = 0
        self._tolerances = tolerances
        self._right: list[list[torch.Tensor]] = []

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
        """Raises Rejected with the pattern where the slot's results are not ``expected``.

        ``poison``: which of the two the outputs held before; ``exact``: asked for the outputs in fp64 where these are
        not ``expected``; ``as_drawn``: the inputs are the problem's own.
        """
        worst_abs, worst_rel = self.errors or (0.0, 0.0)
        count = problem.result_count
        results = slot.results[:count]
        found = checks.compare(results, expected[:count], self._tolerances, slot.result_names[:count])
        unwritten = slot.unwritten(poison) if found.problem is not None else None
        if found.problem is not None and unwritten is None:
            near = compare_in_double(results, expected[:count], exact, self._tolerances)
            self.nearer += near is not None
            found = near or found
        self.errors = max(worst_abs, found.max_abs_error), max(worst_rel, found.max_rel_error)
        if found.problem is None:
            kept = max(_LEAST_KEPT, len(problem.arena.slots) + 1)
            self._right = [expected[:count], *self._right][:kept]
            return
        if unwritten is not None:
            raise Rejected("wrong", "leaves output unwritten", f"{unwritten} ({where})")
        pattern = patterns.name_of(
            slot.results[:count],
            expected[:count],
            slot.inputs,
            self._right,
            lambda: _with_first_weights(problem, slot),
            passed=bool(self._right),
            as_drawn=as_drawn,
        )
        raise Rejected("wrong", pattern, f"{found.problem} ({where})")


def _with_first_weights(problem: JudgedProblem, slot: Slot) -> list[torch.Tensor] | None:
    """What the reference gives for the slot's inputs and the weights of the first call."""
    if not slot.weights or problem.mutates or problem.keeps_weights:
        return None
    for here, first in zip(slot.weights, problem.trial(0).weights, strict=True):
        here.copy_(first)
    problem.bind(slot)
    return problem.run(slot)
