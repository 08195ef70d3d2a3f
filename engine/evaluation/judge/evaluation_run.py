"""Evaluate a kernel once: test its outputs on fresh inputs, and time it against the reference.

The kernel runs in a :class:`~engine.evaluation.sandbox.runner.Runner`. Inputs, expected outputs and the authoritative
clock stay in this process. The reference also runs here. A separate process times it for a Python kernel on a GPU.
``checks.py`` decides whether the kernel passes; this module calls the kernel, times it and records the evidence.
"""

from __future__ import annotations

import random
import secrets
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from msgspec.structs import replace

from engine.evaluation.correctness import comparison
from engine.evaluation.correctness.kernelbench import SecondOpinion
from engine.evaluation.correctness.output_validation import CHANGED, OUTLIERS, PROPERTY, Answers, check_writes
from engine.evaluation.correctness.precision import Precision, PrecisionClassifier
from engine.evaluation.inspect import work
from engine.evaluation.inspect.library_calls import Libraries
from engine.evaluation.judge import checks
from engine.evaluation.judge.checks import Check
from engine.evaluation.judge.problem_context import ProblemContext
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.memory_errors import tells_of_no_memory
from engine.evaluation.rejection import STATUS_OF_END, Rejected
from engine.evaluation.sandbox.arena import Slot
from engine.evaluation.sandbox.module_runner import copied_outputs, copies_after_the_clock_ms, runner_for
from engine.evaluation.sandbox.resource_limits import limits_of
from engine.evaluation.sandbox.runner import Runner, RunnerEnded
from engine.evaluation.sandbox.runner_process import spare_process
from engine.evaluation.timing import statistics
from engine.evaluation.timing.call_batches import after_kernel
from engine.evaluation.timing.call_overhead import CallOverhead
from engine.evaluation.timing.clocks import CallLimits
from engine.evaluation.timing.cpu_contention import CpuContention, on_one_core
from engine.evaluation.timing.speedup import counted, timed
from engine.evaluation.timing.statistics import Pairs
from engine.evaluation.timing.wall_clock_probe import WallClockProbe
from engine.session.records.verdict import BUSY, BuildReport, CheckResult, Launch, Stage, Verdict

_PAIRS, _CLOCK, _DEVICE = POLICY.pairs, POLICY.clock, POLICY.device
_DRAWN = 2
"""Index of a trial with drawn inputs and changed weights (``JudgedProblem``)."""


class EvaluationRun:
    """One kernel in one runner process, with the evidence from its checks.

    ``library``: the built kernel, which is a shared library or a module's ``.py`` file.
    """

    runner: Runner
    """The kernel's runner. ``evaluate`` sets it before the first check."""

    def __init__(
        self,
        context: ProblemContext,
        library: Path,
        on_stage: Callable[[Stage], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.context, self.problem, self.settings = context, context.judged, context.settings
        self.library, self.python = library, library.suffix == ".py"
        self._launches_from_python = self.python and self.settings.kind == "cuda"
        self.slots = len(context.judged.arena.slots)
        self.answers = Answers(comparison.Tolerances(self.settings.tolerance_fp32, self.settings.tolerance_other))
        self.libraries = Libraries(library, self.settings.libraries == "refuse")
        self.pairs = Pairs.none()
        self.writes_ms: list[float] = []
        self.precision = Precision("")
        self.remarks: list[str] = []
        self.calls = self.with_outliers = 0
        self._on_stage, self._cancelled = on_stage, cancelled
        self._evidence: list[CheckResult] = []
        self._check: Check = checks.WHILE_LOADING[1]
        self._stage_s: dict[str, float] = {}
        self._runs_ms = self._between_s = 0.0
        required = self.settings.precision == "fp32"
        self._classifier = PrecisionClassifier(context.judged, context.eager_ms, required)
        self._roles: list[str] = []
        self._reference_first = True
        self._batches_contended = False
        """Whether other programs used the processor before the batches or in each attempt to time them."""
        self._overhead = CallOverhead()
        self.others_share = 0.0
        """Share of the processor that other programs used during timing."""

    def evaluate(self, build: BuildReport) -> Verdict:
        """Run the checks, and return the verdict with the evidence of all checks up to the first failure."""
        context, settings = self.context, self.settings
        verdict = Verdict(status="error", device=settings.device_name, build=build, sol_ms=context.sol_ms)
        theirs = SecondOpinion(context.kernelbench, self.python)
        limits = limits_of(self.problem.spec, settings, context.eager_ms, self.python)
        runner: Runner | None = None
        try:
            self._on_stage("checking")
            started = time.perf_counter()
            with runner_for(self.library, settings, limits, self._cancelled) as runner:
                with theirs.before_the_end_of(runner, lambda: self.calls):
                    self.runner = runner
                    self._perform_all(checks.WHILE_LOADING)
                    self._stage_s["start"] = time.perf_counter() - started
                    if settings.kind == "cuda" and not self.python:  # Timing on a CPU needs all cores.
                        spare_process(settings.kind, settings.isolate).prepare()
                    with self._stage("check"):
                        self._perform_all(checks.WHILE_CHECKING)
                    self._on_stage("timing")
                    with self._stage("timing"):
                        with self._contention():
                            self._perform_all(checks.WHILE_TIMING)
                        self._perform_all(checks.AFTER_TIMING)
                launches = self._launches(runner)
            self._perform_all(checks.AFTERWARDS)
            verdict = replace(self._timed(verdict), launches=launches)
        except RunnerEnded as ended:
            self._note(passed=False, words=str(ended))
            verdict = replace(verdict, status=STATUS_OF_END[ended.end], reason=str(ended))
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not tells_of_no_memory(str(error)):
                raise
            traceback.print_exc()
            reason = f'the judge ran out of device memory in its check "{self._check.name}"; judge the kernel again'
            self._note(passed=False, words=reason)
            verdict = replace(verdict, status="error", reason=reason)
        except Rejected as rejected:
            self._note(passed=False, words=rejected.reason)
            verdict = replace(verdict, status=rejected.status, pattern=rejected.pattern, reason=rejected.reason)
        return replace(
            verdict,
            checks=tuple(self._evidence),
            stage_s={**self._stage_s, "kernelbench": theirs.seconds, "runs": self._runs_ms / 1e3 + theirs.runs_s},
            kernelbench=theirs.verdict,
            sandbox=runner.sandbox if runner is not None else "",
            output_tail=runner.output_tail if runner is not None else "",
            max_abs_error=self.answers.errors[0] if self.answers.errors is not None else None,
            max_rel_error=self.answers.errors[1] if self.answers.errors is not None else None,
        )

    def perform(self, check: Check) -> None:
        """Run ``check``, possibly within another check. Raises ``Rejected`` and ``RunnerEnded``."""
        if not check.applies(self):
            return
        outer, self._check = self._check, check
        if words := check.decide(self):
            self._note(passed=True, words=words)
        self._check = outer

    # Correctness

    def load(self) -> str:
        """Load the kernel. Return the evidence that the kernel's process reports."""
        for slot in self.problem.arena.slots:
            slot.forget()
        loaded = self.runner.load(self.library, self.problem)
        if loaded.keeps_weights:
            self.problem = self.problem.with_own_weights()
        return loaded.detail

    def trial(self, index: int, place: int | None = None) -> None:
        """Call the kernel on inputs that are new to its process, and compare all buffers.

        ``place``: the slot, or None for a random slot.
        """
        trial = self.problem.trial(index)
        place = secrets.randbelow(self.slots) if place is None else place
        slot = self.problem.arena.slots[place]
        trial.load(slot)
        slot.poison(index % 2)
        self.problem.device.synchronize()
        others = self._others_of(slot) if self.calls == 0 else []  # The outputs still contain poison.
        before = comparison.checksum(others)
        self._call(place, trial.seed, timed=False)
        check_writes(slot)
        if comparison.checksum(others) != before:
            raise Rejected("out_of_bounds", "writes out of bounds", "the kernel wrote to the buffers of other calls")
        if (name := trial.changed(slot)) is not None:
            raise Rejected("wrong", "writes its inputs", f"the kernel wrote to its input {name}")
        where = f"trial {index}, {trial.kind.replace('_', '-')} inputs"
        exact, as_drawn = partial(self.problem.trial_in_double, trial, slot), trial.kind == "drawn"
        try:
            self.answers.check(self.problem, slot, trial.expected, index % 2, where, exact, as_drawn=as_drawn)
        except Rejected as rejected:
            if as_drawn or rejected.pattern != CHANGED or self.problem.trials <= _DRAWN:
                raise
            self.trial(_DRAWN)  # If drawn inputs fail as well, the pattern found on them is the right one.
            raise Rejected("wrong", PROPERTY, rejected.reason) from None

    def trial_if_time(self, index: int) -> None:
        """Run a trial between the pairs, unless such trials have used up their time."""
        if self._between_s < _PAIRS.between_s:
            started = time.perf_counter()
            self.trial(index)
            self._between_s += time.perf_counter() - started

    def measure_precision(self) -> Precision:
        """Measure the precision of a sample of the timed calls."""
        self.precision = self._classifier.measure()
        return self.precision

    def _others_of(self, slot: Slot) -> list[torch.Tensor]:
        """Return the buffers that a call on ``slot`` must not change. If they are too large to check, the list is
        empty.
        """
        others = [tensor for one in self.problem.arena.slots if one is not slot for tensor in one.tensors]
        return others if sum(one.nbytes for one in others) <= _DEVICE.others_bytes[self.settings.kind] else []

    # Timing

    def pair_and_perhaps_trial(self) -> bool:
        """Time one pair, sometimes followed by a random trial. Return whether the judge compared the inputs."""
        with self._on_one_core(self.runner.pid, *self._reference_pids):
            compared = self._pair(len(self.pairs.kernel_ms), self._role())
        if self.settings.kind == "cuda" and secrets.randbelow(_PAIRS.writes_one_in) == 0:
            self.time_writes_after_call()
        if secrets.randbelow(_PAIRS.trial_one_in) == 0:
            self.trial(secrets.randbelow(self.settings.trials))
        return compared

    def _role(self) -> str:
        """Return the next pair's kind of inputs: once per cycle "outliers", once "mean zero", otherwise "drawn"."""
        if not self._roles:
            self._roles = ["outliers", "mean zero", *["drawn"] * (_PAIRS.outliers_one_in - 2)]
            random.shuffle(self._roles)
        return self._roles.pop()

    def _pair(self, index: int, role: str) -> bool:
        """Run the reference and the kernel once each on the same buffers, in random order.

        Return whether the judge compared the inputs.

        The kernel cannot infer the number of earlier calls from the order or the buffers.
        """
        problem, place = self.problem, secrets.randbelow(self.slots)
        slot = problem.arena.slots[place]
        # The order is random, but both orders are equally frequent.
        self._reference_first = bool(secrets.randbelow(2)) if index % 2 == 0 else not self._reference_first
        # If the model writes its buffers, the pair loads the same mixture for each of its two calls.
        mixture, seed = problem.fresh_seed(), problem.call_seed()
        outliers, mean_zero = role == "outliers" and problem.takes_outliers, role == "mean zero"
        load = partial(self._load, index, slot, mixture, role)

        def reference() -> tuple[float, list[torch.Tensor]]:
            took_ms, outputs = self._reference(place, seed)
            # The model may return the buffer that it writes.
            kept = [tensor.clone() for tensor in outputs] if problem.mutates else outputs
            return took_ms, kept + [tensor.clone() for tensor in slot.results[len(slot.outputs) :]]

        def kernel() -> tuple[float, float]:
            slot.poison(index % 2)
            before = comparison.checksum(kept)
            problem.device.synchronize()
            took = self._call(place, seed)
            check_writes(slot)
            if comparison.checksum(kept) != before:
                raise Rejected("wrong", "writes its inputs", "the kernel wrote to its inputs during timing")
            return took

        load()
        compares = self.settings.kind == "cuda" or secrets.randbelow(_PAIRS.checksums_one_in) == 0
        kept = slot.unwritable if compares else [t for t in slot.unwritable if any(t is one for one in slot.weights)]
        if self._reference_first:
            reference_ms, expected = reference()
            if problem.mutates:
                load()
            reported_ms, wall_ms = kernel()
        else:
            reported_ms, wall_ms = kernel()
            reference_ms, expected = after_kernel(slot, load, reference)
        where = f"timed call {index}" + (", with outliers" if outliers else ", mean zero" if mean_zero else "")
        as_drawn = not outliers and not mean_zero
        try:
            exact = partial(problem.in_double, slot, load)
            self.answers.check(problem, slot, expected, index % 2, where, exact, as_drawn=as_drawn)
        except Rejected as rejected:
            # Rounded operands may also cause wrong outputs, through cancellation.
            if self.settings.precision == "fp32":
                self.perform(checks.ExactWhenTimed())
            # If drawn inputs fail as well, the pattern found on them is the right one.
            if not as_drawn and rejected.pattern in (PROPERTY, CHANGED):
                self._pair(index, "drawn")
                raise Rejected("wrong", OUTLIERS if outliers else PROPERTY, rejected.reason) from None
            raise
        if self.context.is_measured(problem, role):
            self._classifier.offer(slot, load)
        self.with_outliers += outliers
        self.pairs.reported_ms.append(reported_ms)
        self.pairs.wall_ms.append(wall_ms)
        self.pairs.reference_ms.append(reference_ms)
        self.pairs.reference_first.append(self._reference_first)
        self.context.empty_kernel.call(self._overhead)
        self.pairs.kernel_ms.append(self._limits.counted_ms(reported_ms, wall_ms))
        return compares

    def _load(self, index: int, slot: Slot, mixture: int, role: str) -> None:
        """Load a timed call's inputs and weights into ``slot``. Calls with the same arguments load the same values."""
        self.context.load_timed(self.problem, index, slot, mixture, mean_zero=role == "mean zero")
        if role == "outliers" and self.problem.takes_outliers:
            self.problem.inject_outliers(slot, mixture)
        self.problem.device.synchronize()

    def is_timed_enough(self, elapsed_s: float) -> bool:
        """Return whether the ratio is settled or timing has reached its time limit."""
        pairs, ratios, effort = self.pairs, self.counted().ratios, _PAIRS.quick
        exact = self.settings.precision == "fp32"
        if self.settings.thorough:
            disturbed = len(ratios) < len(pairs.kernel_ms) / 2
            effort = _PAIRS.thorough_busy if disturbed or self.contended else _PAIRS.thorough
        elif median(ratios) < _PAIRS.far and statistics.median_interval(ratios)[2] < 1.0 and not exact:
            return True
        if len(ratios) < (_PAIRS.least_exact if exact else _PAIRS.least):
            return False
        if self.problem.takes_outliers and self.with_outliers < _PAIRS.least_outliers:
            return False
        if elapsed_s >= effort.least_s and statistics.is_settled(ratios, effort.half_width, _PAIRS.least):
            return True
        runs_s = (sum(pairs.reported_ms) + sum(pairs.reference_ms)) / 1e3
        _, low, high = statistics.median_interval(ratios)
        noisy = self.settings.kind == "cuda" and not statistics.is_settled(ratios, _PAIRS.noisy, _PAIRS.least)
        undecided = statistics.is_undecided(low, high)
        patience = _PAIRS.noisy_longer if noisy else _PAIRS.undecided if undecided else 1.0
        spent = elapsed_s - runs_s > patience * effort.overhead_s or runs_s > patience * effort.runs_s
        return spent or self._cancelled()

    def probe_wall_clock(self) -> tuple[float, str]:
        """Return a batched call's excess over the counted time in milliseconds, and the evidence in words."""
        self.pairs.kernel_ms = [
            self._limits.counted_ms(reported, seen)
            for reported, seen in zip(self.pairs.reported_ms, self.pairs.wall_ms, strict=True)
        ]
        check = partial(self.answers.check, self.problem)
        probe = WallClockProbe(self.problem, self.runner, self.context.empty_kernel, check, contended=self.contended)
        pairs = self.counted()
        try:
            return probe.excess_ms(median(pairs.reported_ms), median(pairs.kernel_ms), self._limits)
        finally:
            self._runs_ms += probe.runs_ms
            self.calls += probe.calls
            self._batches_contended = probe.contended

    def counted(self) -> Pairs:
        """Return the pairs that count toward the speedup."""
        return counted(self.settings.kind, self.pairs)

    @property
    def contended(self) -> bool:
        """Whether other programs use so much of the processor that the judge's clock cannot prove cheating."""
        on_processor = self.settings.kind == "cpu" or self.python
        return self._batches_contended or (on_processor and self._shares.share() > BUSY)

    def time_writes_after_call(self) -> None:
        """Call the kernel as in a pair, and add the time of memory writes right after the call to ``writes_ms``."""
        place, seed = secrets.randbelow(self.slots), self.problem.call_seed()
        slot = self.problem.arena.slots[place]
        slot.poison(secrets.randbelow(2))
        self._load(len(self.pairs.kernel_ms), slot, self.problem.fresh_seed(), self._role())
        with self._on_one_core(self.runner.pid, *self._reference_pids):
            self._call(place, seed, then=lambda: self.writes_ms.append(self.problem.device.writes_ms()))

    def time_writes(self) -> float:
        """Return the median time of memory writes on the GPU, in milliseconds."""
        return median(self.problem.device.writes_ms() for _ in range(_PAIRS.least_writes))

    def time_reference_alone(self) -> float:
        """Return the reference's median time in milliseconds, measured as in the pairs but without the kernel's
        process.
        """
        wait_s = min(median(self.pairs.wall_ms) / 1e3, _CLOCK.reference_wait_s)
        times_ms = []
        for index in range(_CLOCK.reference_alone_calls):
            self.context.load_timed(self.problem, index, self.problem.arena.slots[0], self.problem.fresh_seed())
            self.problem.device.synchronize()
            time.sleep(wait_s)
            with self._on_one_core(*self._reference_pids):
                times_ms.append(self._reference(0, self.problem.call_seed())[0])
        return median(times_ms)

    def _reference(self, place: int, seed: int | None) -> tuple[float, list[torch.Tensor]]:
        """Run the reference on the slot's inputs. Return the time in milliseconds, excluding seeding, and the outputs.

        For a Python kernel, the time comes from the reference's own process if that process is running. The outputs
        always come from this process. If the kernel's calls follow untimed calls, the reference's calls do, too. The
        device finishes the untimed calls' work first. While Python then launches the timed call, only cache evictions
        keep the device busy, as in every other timed call.
        """
        slots = self.problem.arena.slots
        slot, untimed = slots[place], self.context.untimed_slots(place)
        if self._launches_from_python:
            apart_ms = self.context.reference_process.time_ms(slot, self.problem.device.flushes, seed, len(untimed))
            if apart_ms is not None:
                self._runs_ms += apart_ms
                if seed is not None:
                    torch.manual_seed(seed)
                return apart_ms, self.problem.run(slot)
        for index in untimed:
            self.problem.run(slots[index])
        if untimed:
            self.problem.device.synchronize()
        forward = self.problem.forward_on(slot)
        if seed is not None:
            torch.manual_seed(seed)
        results: list[Any] = []
        took_ms = self.problem.device.time_ms(lambda: results.append(forward()))
        self._runs_ms += took_ms
        return took_ms, self.problem.output_tensors(results[0])

    def _call(
        self, place: int, seed: int | None = None, *, timed: bool = True, then: Callable[[], object] | None = None
    ) -> tuple[float, float]:
        """Call the kernel once. Return the time that the kernel's process reports and the time that the judge measures,
        in milliseconds.

        ``timed``: whether untimed calls may come first, as in a pair. ``then``: a function to call right after the
        kernel's process has answered.
        """
        self.calls += 1
        untimed = self.context.untimed_slots(place) if timed and self._launches_from_python else ()
        compare = partial(self.answers.check, self.problem)
        check_untimed = self.context.load_untimed(self.problem, untimed, seed, compare)
        reported, wall_ms = self.runner.call([place], self.problem.device.flushes, seed, untimed)
        if then is not None:
            then()
        check_untimed()
        self._runs_ms += reported[0]
        return reported[0], wall_ms

    @property
    def _reference_pids(self) -> list[int]:
        """A list with the pid of the reference's own process, or an empty list if there is no such process."""
        apart = self.context.reference_process.pid if self._launches_from_python else None
        return [apart] if apart is not None else []

    def _on_one_core(self, *pids: int) -> AbstractContextManager[None]:
        """For a Python kernel on a GPU, keep this thread and the processes ``pids`` on one core, because cores differ
        in speed.
        """
        return on_one_core(*pids) if self._launches_from_python else nullcontext()

    @contextmanager
    def _contention(self) -> Iterator[None]:
        """While the context is open, measure the processor use of other programs, and set the limits for calls."""
        if self._launches_from_python:
            self.context.reference_process.begin()
        self._shares = CpuContention(self.runner.pid, self.context.empty_kernel.pid, *self._reference_pids)
        self._limits = CallLimits(
            kind=self.settings.kind,
            overhead=self._overhead,
            copy_ms=copies_after_the_clock_ms(self.problem, self.runner) if self.python else None,
            copied=copied_outputs(self.problem, self.runner) if self.python else 0,
            binds_ms=() if self.problem.keeps_weights else self.problem.binds_ms,
            untimed=self.context.untimed_calls if self.python else 0,
            least_ms=self.problem.device.least_ms(),
        )
        try:
            yield
        finally:  # The runner must still be alive. Otherwise its processor use would count as that of other programs.
            self.others_share = self._shares.share()

    # Verdict

    def _launches(self, runner: Runner) -> tuple[Launch, ...]:
        """Return the GPU launches of one call, with readable names. This call is the process's last call, because
        recording the launches may end the process.
        """
        if self.settings.kind != "cuda":
            return ()
        found = runner.launches(self.problem.call_seed())
        return tuple(replace(one, kernel=work.short(torch._C._demangle(one.kernel))) for one in found)

    def _timed(self, verdict: Verdict) -> Verdict:
        """Return ``verdict`` with times, precision and remarks."""
        others = self.others_share if self.settings.kind == "cpu" else 0.0
        if others > BUSY:
            self.remarks.append(f"other programs used {others:.0%} of the CPU during timing")
        return replace(
            timed(verdict, self.settings.kind, self.pairs),
            flags=(*self.remarks, *self.libraries.flags),
            others=others,
            precision=self.precision.name,
            fp64_error=self.precision.error if self.precision.name else None,
            eager_fp64_error=self.precision.eager_error if self.precision.name else None,
        )

    def _perform_all(self, each: Sequence[Check]) -> None:
        for check in each:
            self._check = check
            self.perform(check)

    def _note(self, *, passed: bool, words: str) -> None:
        self._evidence.append(CheckResult(self._check.name, passed, words))

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._stage_s[name] = time.perf_counter() - started
