"""Time batches of calls with the judge's clock, because a kernel could hide too much time in the overhead of a single
call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from statistics import median

from engine.evaluation.correctness.comparison import checksum
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.arena import Slot
from engine.evaluation.sandbox.runner import Runner
from engine.evaluation.timing.call_batches import CallBatch, Compare
from engine.evaluation.timing.call_overhead import EmptyKernel
from engine.evaluation.timing.clocks import CallLimits
from engine.evaluation.timing.cpu_contention import CpuContention

_CLOCK = POLICY.clock


class WallClockProbe:
    """Time one kernel's batches. ``calls`` and ``runs_ms``: the number of calls and their total time.

    ``contended``: whether other programs use the processor; the probe then makes more attempts to time an undisturbed
    batch. The probe sets ``contended`` if other programs disturbed the batches in every attempt. All methods raise
    ``RunnerEnded``, and ``Rejected`` if a call in a batch returns wrong outputs.
    """

    def __init__(
        self, problem: JudgedProblem, runner: Runner, empty_kernel: EmptyKernel, check: Compare, *, contended: bool
    ) -> None:
        self._problem, self._runner, self._empty_kernel, self._check = problem, runner, empty_kernel, check
        self.contended = contended
        self._tries = _CLOCK.batches_contended if contended else _CLOCK.batches
        self._slots = len(problem.arena.slots)
        self.calls, self.runs_ms = 0, 0.0

    def excess_ms(self, reported_ms: float, claimed_ms: float, limits: CallLimits) -> tuple[float, str]:
        """Return a call's excess over ``claimed_ms`` in milliseconds, and the evidence in words.

        ``reported_ms``: the median time that the kernel's process reports for a single call. ``claimed_ms``: the time
        that counts so far.

        Short bursts of activity in other programs can disturb all batches but hardly raise the load over the whole
        timing. The probe then repeats the batches with more attempts, and uses the smallest excess.
        """
        on_processor = limits.kind == "cpu" or limits.python
        if self.contended or not on_processor or claimed_ms > _CLOCK.batch_below_ms:
            return self._excess_ms(reported_ms, claimed_ms, limits)
        least = float("inf"), ""
        for _ in range(_CLOCK.probes):
            contention = CpuContention(self._runner.pid, self._empty_kernel.pid)
            least = min(least, self._excess_ms(reported_ms, claimed_ms, limits))
            if least[0] == 0.0 or not contention.disturbed():
                return least
            self._tries = _CLOCK.batches_contended
        self.contended = True
        return least

    def _excess_ms(self, reported_ms: float, claimed_ms: float, limits: CallLimits) -> tuple[float, str]:
        """Return a call's excess over ``claimed_ms`` in milliseconds, and the evidence in words.

        The method uses the first case that applies. If calls are longer than ``batch_below_ms``, single calls suffice.
        If there is only one buffer set, the probe times calls on the same buffers. If the model writes its inputs or
        buffers, each load permits only one call, so the probe never repeats calls. If a GPU can queue calls, the probe
        times queued calls. If a compiled GPU kernel's ``launch`` waits for the device, the probe times batches of two
        calls and of all slots. It then uses the larger of two times: the long batch's time per call, and the time per
        additional call. Otherwise, the probe times calls on the same buffers and calls on separate buffers, and uses
        the larger excess. If a Python kernel on a CPU has no excess in either measurement, the probe times calls on
        alternating buffers, too.
        """
        if claimed_ms > _CLOCK.batch_below_ms:
            return 0.0, "single calls agree with the reported time"
        once = self._problem.mutates
        warm = partial(self._warm_batches, reported_ms, claimed_ms, limits)
        if self._slots < 2:
            return (0.0, "the model does not permit batched calls") if once else warm()
        if limits.kind == "cuda" and (queued := self._queued(claimed_ms, limits)) is not None:
            return queued
        if limits.kind == "cuda" and not limits.python and self._queue_overhead_ms is not None:
            each_ms = self._waiting_ms(limits)
            words = f"launch() waits for the device: batched calls took {each_ms:.4g} ms each"
            return max(0.0, each_ms - claimed_ms), words
        unrepeated = (0.0, "the model does not permit repeated calls")
        warm_ms, words = unrepeated if once else warm()
        cold_ms, found = self._batches(claimed_ms, limits, warm_agrees=warm_ms == 0.0 and not once)
        repeats = self._slots < _CLOCK.between_calls
        if limits.python and limits.kind == "cpu" and max(warm_ms, cold_ms) == 0.0 and not (once and repeats):
            between_ms, also = self._between_calls(limits)
            return between_ms, f"{words}; {found}; {also}"
        return max(warm_ms, cold_ms), f"{words}; {found}"

    def _between_calls(self, limits: CallLimits) -> tuple[float, str]:
        """Time the work of a Python kernel's process outside its calls, such as work hidden in reporting the outputs.

        For calls on alternating buffers, the process reports the outputs one by one. Cold buffers explain long calls,
        but not the time between two calls.
        """
        count = self._slots * -(-_CLOCK.between_calls // self._slots)
        beside_ms = limits.beside_batch_ms(count, _CLOCK.batch_call_ms[limits.kind])
        for index, slot in enumerate(self._problem.arena.slots):  # Unused slots have no inputs yet.
            self._problem.load_mixed(index, slot, self._problem.fresh_seed())
        between_ms = float("inf")
        for _ in range(self._tries):
            reported_ms, wall_ms = self._runner.call([index % self._slots for index in range(count)])
            between_ms = min(between_ms, (self._counted(count, wall_ms) - sum(reported_ms)) / count - beside_ms)
            if between_ms <= _CLOCK.batch_colder_ms[limits.kind]:
                return 0.0, f"{count} calls on alternating buffers agree with the reported time"
        return between_ms, f"the process worked for {between_ms:.4g} ms after each of {count} calls"

    def _warm_batches(self, reported_ms: float, claimed_ms: float, limits: CallLimits) -> tuple[float, str]:
        """Time calls on the same, cached buffers. Such calls reveal even microseconds of hidden time, unless the kernel
        skips calls.

        The process reports a batch's time, too. On a CPU, if a compiled kernel's reported time of a batch is clearly
        too short, its clock is slow, and the probe assumes the same error for single calls.
        """
        count = max(2, min(_CLOCK.warm_batch_most, round(_CLOCK.warm_batch_target_ms / max(claimed_ms, 1e-3))))
        beside_ms = limits.beside_batch_ms(count, _CLOCK.batch_call_ms[limits.kind], binds=False)
        batches: list[tuple[float, float]] = []
        excess_ms, words = self._least(
            lambda: self._measured_warm_batch_ms(count, beside_ms, batches),
            claimed_ms,
            _CLOCK.warm_batch_factor * claimed_ms,
            f"{count} calls",
        )
        # Python kernels have an allowance per call, and CUDA events time GPU kernels.
        if limits.python or limits.kind != "cpu":
            return excess_ms, words
        while _rate(batches) > _CLOCK.slow_clock and len(batches) < self._tries:
            self._measured_warm_batch_ms(count, beside_ms, batches)
        if (rate := _rate(batches)) <= _CLOCK.slow_clock:
            return excess_ms, words
        # A process that reports almost nothing for a batch has an arbitrary rate.
        most_ms = _CLOCK.batch_colder * min(seen_ms for _, seen_ms in batches)
        found = f"{count} calls in a batch took {rate:.3g} times as long as the process reports"
        return max(excess_ms, min(rate * reported_ms, most_ms) - claimed_ms), found

    def _batches(self, claimed_ms: float, limits: CallLimits, *, warm_agrees: bool) -> tuple[float, str]:
        """Time calls on separate buffers. Separate buffers prevent skipped calls, but the buffers are cold."""
        count = self._count(_CLOCK.batch_target_ms, claimed_ms)
        loop_ms = _CLOCK.batch_call_ms[limits.kind]
        if limits.kind == "cpu" and claimed_ms <= _CLOCK.tiny_ms:
            slots = [index % self._slots for index in range(count)]
            loop_ms = max(loop_ms, _CLOCK.overhead * self._empty_kernel.batch_overhead_ms(slots))
        beside_ms = limits.beside_batch_ms(count, loop_ms)

        def least(cold_ms: float) -> tuple[float, str]:
            return self._least(
                lambda: self._measured_batch_ms(count, beside_ms),
                claimed_ms,
                limits.allowed_batch_call_ms(claimed_ms, cold_ms, warm_agrees=warm_agrees),
                f"{count} calls on separate buffers",
            )

        found = least(0.0)
        return found if found[0] == 0.0 else least(_cold_ms(self._problem))

    def _least(
        self, measure: Callable[[], float], claimed_ms: float, allowed_ms: float, words: str
    ) -> tuple[float, str]:
        """Return the fastest batch's excess and the evidence. The excess is 0 as soon as a batch stays within the
        allowance.
        """
        each_ms = float("inf")
        for _ in range(self._tries):
            each_ms = min(each_ms, measure())
            if each_ms <= allowed_ms:
                return 0.0, f"{words} in a batch agree with the reported time"
        return each_ms - claimed_ms, f"{words} in a batch took {each_ms:.4g} ms each"

    def _queued(self, claimed_ms: float, limits: CallLimits) -> tuple[float, str] | None:
        """Time GPU calls queued before their inputs exist, so that the kernel cannot skip or anticipate work.

        Returns None if the runner cannot queue calls.
        """
        count, each_ms = self._count(_CLOCK.queue_target_ms, claimed_ms), float("inf")
        for _ in range(self._tries):
            if (all_ms := self._measured_queued_ms(count)) is None:
                if count == 2:
                    return None
                # One call may launch more kernels than the stream can queue.
                count = max(2, count // _CLOCK.queue_shrink)
                continue
            each_ms = min(each_ms, max(0.0, all_ms / count))
            if each_ms <= limits.allowed_queued_ms(claimed_ms, count):
                return 0.0, f"{count} queued calls took {each_ms:.4g} ms each"
        return each_ms - claimed_ms, f"{count} queued calls took {each_ms:.4g} ms each"

    def _waiting_ms(self, limits: CallLimits) -> float:
        """Return the time per call in milliseconds if ``launch`` waits for the GPU.

        The difference between a long and a short batch does not include the batch's own overhead. A kernel that delays
        short batches could shrink this difference, so the method returns the larger result.
        """
        count, reported_ms, wall_ms = self._slots, *self._fastest_batch(self._slots)
        each_ms = max(reported_ms / count, wall_ms / count - limits.beside_batch_ms(count, 0.0))
        more = count - 2
        if more < _CLOCK.waiting_calls:
            return each_ms
        return max(each_ms, (wall_ms - self._fastest_batch(2)[1]) / more)

    def _fastest_batch(self, count: int) -> tuple[float, float]:
        """Return the shortest times of a few batches in milliseconds: the reported time, and the time by the judge's
        clock.
        """
        batches = [CallBatch(self._problem, self._runner, count, self._check) for _ in range(_CLOCK.waiting_batches)]
        times = [batch.call() for batch in batches]
        return min(reported for reported, _ in times), min(self._counted(count, wall) for _, wall in times)

    def _count(self, target_ms: float, claimed_ms: float) -> int:
        return max(2, min(self._slots, round(target_ms / max(claimed_ms, 1e-3))))

    def _measured_batch_ms(self, count: int, beside_ms: float) -> float:
        """Return the time per call on separate buffers in milliseconds: the larger of the reported time and the judge's
        time.
        """
        reported_ms, wall_ms = CallBatch(self._problem, self._runner, count, self._check).call()
        return max(self._counted(count, wall_ms) / count - beside_ms, reported_ms / count)

    def _measured_warm_batch_ms(self, count: int, beside_ms: float, batches: list[tuple[float, float]]) -> float:
        """Return the time per call of ``count`` calls on the buffers of one slot, in milliseconds.

        The method appends the reported time per call and the judge's time per call to ``batches``.
        """
        self._problem.trial(0).load(self._problem.arena.slots[0])
        self._problem.device.synchronize()
        reported_ms, wall_ms = self._runner.call([0] * count)
        batches.append((sum(reported_ms) / count, self._counted(count, wall_ms) / count - beside_ms))
        return max(batches[-1])

    def _measured_queued_ms(self, count: int) -> float | None:
        """Return the total time of ``count`` queued calls in milliseconds, excluding the time for queuing."""
        if self._queue_overhead_ms is None:
            return None
        took_ms = CallBatch(self._problem, self._runner, count, self._check).call_behind_gate()
        return None if took_ms is None else self._counted(count, took_ms) - self._queue_overhead_ms

    @cached_property
    def _queue_overhead_ms(self) -> float | None:
        """Return the time for queuing an empty kernel in milliseconds, or None if the driver cannot queue calls."""
        return self._empty_kernel.queue_overhead_ms()

    def _counted(self, count: int, wall_ms: float) -> float:
        self.calls += count
        self.runs_ms += wall_ms
        return wall_ms


def _rate(batches: Sequence[tuple[float, float]]) -> float:
    """Return the smallest ratio of the judge's time to the reported time among ``batches``."""
    return min(seen_ms / max(reported_ms, 1e-6) for reported_ms, seen_ms in batches)


def _cold_ms(problem: JudgedProblem) -> float:
    """Return the extra milliseconds for touching all of a slot's buffers after the judge has loaded other slots.

    Returns 0 on a GPU, because the judge evicts the GPU's cache before each timed call.
    """
    if problem.device.cuda:
        return 0.0

    def touch(slot: Slot) -> float:
        started = time.perf_counter()
        checksum(slot.unwritable)
        slot.poison(0)
        return 1e3 * (time.perf_counter() - started)

    warm_ms = []
    for index, slot in enumerate(problem.arena.slots):
        problem.load_mixed(index, slot, problem.fresh_seed())
        slot.poison(1)
        warm_ms.append(touch(slot))
    cold_ms = [touch(slot) for slot in problem.arena.slots]
    return max(0.0, median(cold_ms) - median(warm_ms))
