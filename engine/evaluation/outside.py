"""Confirm a kernel's clock by calls that are timed from outside: many at once, so that one answer costs little a call.

Used by every judgement and every heat. What may differ by how much is ``clock.py``'s to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from statistics import median

from engine.evaluation.clock import Clock, Row
from engine.evaluation.control import EmptyKernel
from engine.evaluation.rows import Check, call_behind_gate, call_in_a_row
from engine.evaluation.sandbox import Runner
from engine.evaluation.trials import JudgedProblem

_DRIFT_CALLS = 3
_FROM_OUTSIDE = 3


class Outside:
    """Makes such calls of one kernel. ``calls`` and ``runs_ms``: how many, and what they and the reference took."""

    def __init__(
        self, problem: JudgedProblem, runner: Runner, empty_kernel: EmptyKernel, check: Check, reference_ms: float
    ) -> None:
        self._problem, self._runner, self._empty_kernel, self._check = problem, runner, empty_kernel, check
        self._reference_ms = reference_ms
        self.slots = len(problem.arena.slots)
        self.calls, self.runs_ms = 0, 0.0

    def on_one_slot(self, count: int) -> Row:
        """``count`` calls on the same buffers. Raises ``RunnerEnded``, as the others do."""
        self._problem.trial(0).load(self._problem.arena.slots[0])
        self._problem.device.synchronize()
        own_ms, wall_ms = self._runner.call([0] * count)
        return Row(count, sum(own_ms), self._counted(count, wall_ms))

    def in_a_row(self, count: int) -> Row:
        """The same on buffers of their own. Raises ``Rejected`` for a wrong result."""
        own_ms, wall_ms = call_in_a_row(self._problem, self._runner, count, self._check)
        return Row(count, own_ms, self._counted(count, wall_ms))

    def queued(self, count: int) -> float | None:
        """Milliseconds of calls queued on a GPU before their inputs are there, beside what that costs an empty kernel;
        None where they cannot be queued."""
        if self.queue_ms is None:
            return None
        took_ms = call_behind_gate(self._problem, self._runner, count, self._check)
        return None if took_ms is None else self._counted(count, took_ms) - self.queue_ms

    @cached_property
    def queue_ms(self) -> float | None:
        """What it costs an empty kernel; None where the driver can queue nothing."""
        return self._empty_kernel.queue_ms()

    def drift(self) -> float:
        """How many times as long as it did the reference takes now."""
        times_ms = self._problem.time_reference(_DRIFT_CALLS)
        self.runs_ms += sum(times_ms)
        return min(times_ms) / self._reference_ms

    def empty_ms(self, count: int) -> float:
        """What each of ``count`` calls in a row of an empty kernel, on buffers of their own, takes beside its clock."""
        return self._empty_kernel.row_ms([index % self.slots for index in range(count)])

    def cold_ms(self) -> float:
        """What a call takes longer because its buffers were not loaded just before it."""
        return self._problem.cold_ms()

    def _counted(self, count: int, wall_ms: float) -> float:
        self.calls += count
        self.runs_ms += wall_ms
        return wall_ms


def confirm(clock: Clock, own_ms: Sequence[float], outside: Outside) -> tuple[str, float]:
    """What was found, in words, and milliseconds that a call takes longer than its clock says by right: of a kernel
    whose ``launch`` waits for the GPU, which can be timed from outside only. Raises ``Rejected`` and ``RunnerEnded``.
    """
    words, excess_ms = [clock.check_in_a_row(own_ms, outside.on_one_slot, outside.drift, outside.empty_ms)], 0.0
    found = clock.check_queued(own_ms, outside.queued, outside.slots)
    if found is None:
        found = clock.check_rows(
            own_ms, outside.in_a_row, outside.slots, outside.cold_ms, outside.drift, outside.empty_ms
        )
        if clock.times_from_outside and outside.slots > 1 and outside.queue_ms is not None:
            each_ms = min(outside.in_a_row(outside.slots).each_ms for _ in range(_FROM_OUTSIDE))
            excess_ms = max(0.0, each_ms - median(own_ms))
            found += f"; launch waits for the device: {excess_ms:.3g} ms seen from outside are added"
    return "; ".join(filter(None, (*words, found))), excess_ms
