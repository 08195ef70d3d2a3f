"""Call a kernel many times in one batch, each time on different buffers, and time the whole batch.

For a single call, the judge can observe only when the answer arrives. A kernel that slows its process's clock can
therefore hide time in the call's overhead. For a batch, a single answer covers many calls, which leaves little room to
hide time per call. The kernel cannot tell which outputs the judge compares, so it cannot skip any output.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from engine.evaluation.correctness.fp64_reference import Exact
from engine.evaluation.correctness.output_validation import check_writes
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.inputs.mixing import copy_into
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.arena import Slot
from engine.evaluation.sandbox.runner import Runner

T = TypeVar("T")
Compare = Callable[[Slot, list[torch.Tensor], int, str, Exact], None]
"""A function that compares a slot's results with the expected outputs. The other arguments are the number of the poison
pattern, a phrase that names the call, and a source of fp64 outputs.
"""


class CallBatch:
    """A batch of calls on slots in random order, each with fresh inputs. Methods raise ``RunnerEnded`` and whatever
    ``check`` raises.
    """

    def __init__(self, problem: JudgedProblem, runner: Runner, count: int, check: Compare) -> None:
        self._problem, self._runner, self._check = problem, runner, check
        self._numbers = random.sample(range(len(problem.arena.slots)), count)
        self._slots = [problem.arena.slots[number] for number in self._numbers]
        self._mixtures = [problem.fresh_seed() for _ in self._slots]
        self._seed = problem.call_seed()

    def call(self) -> tuple[float, float]:
        """Return the total times of all calls in milliseconds: the reported time, and the time by the judge's clock."""
        self._load()
        reported_ms, wall_ms = self._runner.call(self._numbers, seed=self._seed)
        self._compare()
        return sum(reported_ms), wall_ms

    def call_behind_gate(self) -> float | None:
        """Queue the calls before their inputs exist, then time the calls. Return None if the runner cannot queue the
        calls.
        """
        wall_ms = self._runner.call_behind_gate(self._numbers, self._load, self._problem.device.settle, self._seed)
        if wall_ms is not None:
            self._compare()
        return wall_ms

    def _load(self) -> None:
        for index, (slot, mixture) in enumerate(zip(self._slots, self._mixtures, strict=True)):
            self._problem.load_mixed(index, slot, mixture)
            slot.poison(index % 2)
        self._problem.device.synchronize()

    def _compare(self) -> None:
        problem, compared = self._problem, list(range(len(self._slots)))
        if self._seed is not None:  # The reference then draws the same random numbers as the kernel, call by call.
            torch.manual_seed(self._seed)
        elif len(compared) > POLICY.clock.batch_compared:
            compared = random.sample(compared, POLICY.clock.batch_compared)
        for index in compared:
            check_writes(self._slots[index])
        for index in compared:
            slot, mixture = self._slots[index], self._mixtures[index]
            load, reference = (
                partial(problem.load_mixed, index, slot, mixture),
                partial(expected_outputs, problem, slot),
            )
            exact = partial(problem.in_double, slot, load)
            self._check(slot, after_kernel(slot, load, reference), index % 2, f"call {index} of a batch", exact)


def after_kernel(slot: Slot, load: Callable[[], object], reference: Callable[[], T]) -> T:
    """Return the result of ``reference`` for the inputs that ``load`` writes. The slot keeps the kernel's results."""
    written = slot.results[len(slot.outputs) :]
    results = [tensor.clone() for tensor in written]
    load()
    found = reference()
    copy_into(written, results)
    return found


def expected_outputs(problem: JudgedProblem, slot: Slot) -> list[torch.Tensor]:
    """Return the reference's outputs for the inputs in ``slot``, and the inputs and buffers that the model writes."""
    outputs = problem.run(slot)
    # The model may return the buffer that it writes.
    kept = [tensor.clone() for tensor in outputs] if problem.mutates else outputs
    return kept + [tensor.clone() for tensor in slot.results[len(slot.outputs) :]]
