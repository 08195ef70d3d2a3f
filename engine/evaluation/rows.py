"""Calls of a kernel in a row, each on inputs and outputs of its own, timed by the judge's clock as a whole.

Single calls end with an answer that may be slow to arrive, which leaves room for a clock that lies about short ones.
A row ends with one answer for many calls, and since nobody knows which outputs are compared, none can be skipped.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from engine.evaluation.answers import check_writes
from engine.evaluation.arena import Slot
from engine.evaluation.nearness import Exact
from engine.evaluation.sandbox import Runner
from engine.evaluation.trials import JudgedProblem

_COMPARED = 64
"""Slots whose results are compared, drawn by lot where there are more: who skips one call in ten is found out in 999 of
1000 rows."""

T = TypeVar("T")
Check = Callable[[Slot, list[torch.Tensor], int, str, Exact], None]
"""Compares a slot's results with the expected ones, given the poison that was there, where it is, and what fp64 would
give; may raise."""


def call_in_a_row(problem: JudgedProblem, runner: Runner, count: int, check: Check) -> tuple[float, float]:
    """Milliseconds of ``count`` calls, each on a slot, by the runner's clock and from outside.

    Raises ``RunnerEnded``, ``Rejected`` and what ``check`` does.
    """
    row = _Row(problem, count)
    row.load()
    own_ms, wall_ms = runner.call(row.numbers, seed=row.seed)
    row.check(check)
    return sum(own_ms), wall_ms


def call_behind_gate(problem: JudgedProblem, runner: Runner, count: int, check: Check) -> float | None:
    """The same of calls that were queued before their inputs were there; None where they cannot be queued."""
    row = _Row(problem, count)
    wall_ms = runner.call_behind_gate(row.numbers, row.load, problem.device.settle, row.seed)
    if wall_ms is not None:
        row.check(check)
    return wall_ms


class _Row:
    """Slots in random order with fresh inputs for each."""

    def __init__(self, problem: JudgedProblem, count: int) -> None:
        self._problem = problem
        self.numbers = random.sample(range(len(problem.arena.slots)), count)
        self._slots = [problem.arena.slots[number] for number in self.numbers]
        self._mixtures = [problem.fresh_seed() for _ in self._slots]
        self.seed = problem.call_seed()

    def load(self) -> None:
        for index, (slot, mixture) in enumerate(zip(self._slots, self._mixtures, strict=True)):
            self._problem.load_mixed(index, slot, mixture)
            slot.poison(index % 2)
        self._problem.device.synchronize()

    def check(self, check: Check) -> None:
        """Compare results. Raises ``Rejected`` and what ``check`` does."""
        problem = self._problem
        compared = list(range(len(self._slots)))
        if self.seed is not None:  # then the reference draws what the kernel has drawn, call after call
            torch.manual_seed(self.seed)
        elif len(compared) > _COMPARED:
            compared = random.sample(compared, _COMPARED)
        for index in compared:
            check_writes(self._slots[index])
        for index in compared:
            slot, mixture = self._slots[index], self._mixtures[index]
            load, reference = partial(problem.load_mixed, index, slot, mixture), partial(_expected, problem, slot)
            exact = partial(problem.in_double, slot, load)
            check(slot, after_kernel(slot, load, reference), index % 2, f"call {index} in a row", exact)


def after_kernel(slot: Slot, load: Callable[[], object], reference: Callable[[], T]) -> T:
    """What ``reference`` gives for what was meant, whatever the kernel left in its inputs; its results stay."""
    written = slot.results[len(slot.outputs) :]
    results = [tensor.clone() for tensor in written]
    load()
    found = reference()
    for here, tensor in zip(written, results, strict=True):
        here.copy_(tensor)
    return found


def _expected(problem: JudgedProblem, slot: Slot) -> list[torch.Tensor]:
    problem.bind(slot)
    outputs = problem.run(slot)
    # What the model returns may be the very buffer that it writes.
    kept = [tensor.clone() for tensor in outputs] if problem.mutates else outputs
    return kept + [tensor.clone() for tensor in slot.results[len(slot.outputs) :]]
