"""The judge's checks, in the order that the judge runs them. ``docs/explanation/judge.md`` describes each check.

Each check names a threat from ``docs/explanation/threat-model.md``, queries a :class:`KernelUnderTest`, and returns its
evidence in words. If the kernel fails, the check raises ``Rejected`` with the status, the pattern and a reason.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from statistics import median
from typing import ClassVar, Protocol

from engine.evaluation.correctness.output_validation import Answers
from engine.evaluation.correctness.precision import Precision
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.inspect.library_calls import Libraries
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge.problem_context import ProblemContext
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.rejection import Rejected
from engine.evaluation.sandbox.runner import Runner
from engine.evaluation.timing.clocks import check_report
from engine.evaluation.timing.statistics import Pairs

SLOWS = "slows the reference"
_PAIRS, _CLOCK = POLICY.pairs, POLICY.clock


class KernelUnderTest(Protocol):
    """The measurements and operations that checks may use. :class:`EvaluationRun` implements this interface.

    Methods that call the kernel raise ``Rejected`` and ``RunnerEnded``.
    """

    context: ProblemContext
    settings: JudgeSettings
    problem: JudgedProblem
    runner: Runner
    python: bool
    """Whether the kernel is a ``.py`` module."""
    slots: int
    """Number of buffer sets in the arena."""
    libraries: Libraries
    answers: Answers
    pairs: Pairs
    """The pairs timed so far."""
    remarks: list[str]
    """Remarks for the verdict."""
    calls: int
    with_outliers: int
    """Number of timed pairs with outliers among their inputs."""
    writes_ms: list[float]
    """Times of memory writes on the GPU right after calls of the kernel, in milliseconds."""

    @property
    def contended(self) -> bool:
        """Whether other programs use so much of the processor that the judge's clock cannot prove cheating."""

    def load(self) -> str:
        """Load the kernel. Return the evidence that the kernel's process reports."""

    def trial(self, index: int, place: int | None = None) -> None:
        """Run trial ``index`` on slot ``place``, or on a random slot, and compare all buffers."""

    def trial_if_time(self, index: int) -> None:
        """Run trial ``index`` unless extra trials have used up their time."""

    def pair_and_perhaps_trial(self) -> bool:
        """Time one pair, sometimes followed by a trial. Return whether the judge compared the inputs."""

    def is_timed_enough(self, elapsed_s: float) -> bool:
        """Return whether the ratio is settled or timing has reached its time limit."""

    def probe_wall_clock(self) -> tuple[float, str]:
        """Return a call's excess over the counted time in milliseconds, and the evidence in words."""

    def counted(self) -> Pairs:
        """Return the pairs that count toward the speedup."""

    def measure_precision(self) -> Precision:
        """Return the precision of a sample of the timed calls."""

    def time_writes_after_call(self) -> None:
        """Call the kernel as in a pair, and add the time of memory writes right after the call to ``writes_ms``."""

    def time_writes(self) -> float:
        """Return the median time of memory writes on the GPU, in milliseconds."""

    def time_reference_alone(self) -> float:
        """Return the reference's median time without the kernel's process, in milliseconds."""


class Check(ABC):
    """One test of a kernel. ``name`` appears in the verdict's evidence; several checks may share a name."""

    name: ClassVar[str]
    threat: ClassVar[str]

    def applies(self, run: KernelUnderTest) -> bool:
        """Return whether the check applies to this kernel on this device."""
        return True

    @abstractmethod
    def decide(self, run: KernelUnderTest) -> str:
        """Return the evidence in words, or "" if there is none. Raises ``Rejected`` and ``RunnerEnded``."""


class NamesNoLibrary(Check):
    """Before the kernel's first run, check that neither the source nor the built files name a compute library."""

    name, threat = "libraries", "library"

    def decide(self, run: KernelUnderTest) -> str:
        run.libraries.look_at_files()
        run.libraries.before(run.runner)
        return ""


class Loads(Check):
    """Check that the isolated process loads the kernel and maps the shared buffers."""

    name, threat = "loads", "escape"

    def decide(self, run: KernelUnderTest) -> str:
        return run.load()


class RightOnFreshInputs(Check):
    """Check that outputs are correct and other memory unchanged in every trial with new inputs, weights and poison."""

    name, threat = "right on fresh inputs", "stale-output, replay, input-property, out-of-bounds"

    def decide(self, run: KernelUnderTest) -> str:
        for index in range(run.settings.trials):
            run.trial(index, index % min(POLICY.device.trial_slots, run.slots))
        weights = "the same weights, " if run.problem.keeps_weights else "changed weights, "
        return f"{run.settings.trials} trials, {weights if run.problem.spec.weights else ''}two poison patterns"


class MapsNoLibrary(Check):
    """Check before timing that a compiled kernel's process has not mapped a compute library."""

    name, threat = "libraries", "library"

    def decide(self, run: KernelUnderTest) -> str:
        run.libraries.look_at_process(run.runner)
        return ""


class RunsInOneProcess(Check):
    """Check that a Python kernel does not keep child processes running. Neither clock would count their work."""

    name, threat = "processes", "late-work"

    def applies(self, run: KernelUnderTest) -> bool:
        return run.python

    def decide(self, run: KernelUnderTest) -> str:
        if found := run.runner.others_started():
            raise Rejected("cheating", "keeps processes running", f"the kernel started {', '.join(found)[:200]}")
        return ""


class RightWhileTimed(Check):
    """Check that every output is correct in the timed pairs. Timing continues until the ratio is settled.

    Trials with other inputs follow random pairs, so a kernel cannot tell that only timing remains.
    """

    name, threat = "right while timed", "timed-only, replay, input-property"

    def decide(self, run: KernelUnderTest) -> str:
        between, started, compared = self._between(run), time.perf_counter(), 0
        while len(run.pairs.kernel_ms) < run.settings.max_pairs:
            index = len(run.pairs.kernel_ms)
            compared += run.pair_and_perhaps_trial()
            for trial in between.get(index, ()):
                run.trial_if_time(trial)
            looks = index < _PAIRS.look_always or index % _PAIRS.look_every == 0
            if looks and index + 1 >= _PAIRS.least_far and run.is_timed_enough(time.perf_counter() - started):
                break
        words = f"{len(run.pairs.kernel_ms)} pairs, all outputs compared, inputs of {compared} pairs compared, "
        words += f"{run.with_outliers} with outliers" if run.problem.takes_outliers else "none with outliers"
        if run.answers.nearer:
            words += f"; outputs of {run.answers.nearer} calls differ from eager's but are close to fp64"
        return words

    @staticmethod
    def _between(run: KernelUnderTest) -> dict[int, list[int]]:
        """Map the indices of random pairs to the trials that follow these pairs."""
        between: dict[int, list[int]] = {}
        for trial in run.problem.discriminating_trials():
            place = secrets.randbelow(min(_PAIRS.least_far, run.settings.max_pairs))
            between.setdefault(place, []).append(trial)
        return between


class ReportsItsTime(Check):
    """Check that single calls and batches take no longer than the kernel's process reports. If calls take longer,
    the speedup uses the longer time.
    """

    name, threat = "own clock agrees", "clock, late-work"

    def decide(self, run: KernelUnderTest) -> str:
        excess_ms, found = run.probe_wall_clock()
        run.pairs.kernel_ms = [ms + excess_ms for ms in run.pairs.kernel_ms]
        counted = run.counted()
        remark = check_report(counted.reported_ms, counted.kernel_ms, contended=run.contended)
        if remark:
            run.remarks.append(remark)
        return remark or found


class RightAfterTiming(Check):
    """Check that the first trial passes again after timing."""

    name, threat = "right after timing", "timed-only"

    def decide(self, run: KernelUnderTest) -> str:
        run.trial(0, 0)
        return f"call {run.calls}"


class ExactWhenTimed(Check):
    """Check that sampled timed calls reach the precision that ``evaluation.precision`` requires, on inputs that reveal
    precision.
    """

    name, threat = "precision", "low-precision, timed-only"

    def decide(self, run: KernelUnderTest) -> str:
        found = run.measure_precision()
        if run.settings.precision == "fp32" and not found.sufficient:
            raise Rejected("wrong", "lower precision", f'{found.words}; evaluation.precision = "fp32" requires more')
        return found.words


class UsesNoLibrary(Check):
    """Check in an extra call that operators and libraries do no more than the permitted share of the work. Also check
    that the kernel's process has not mapped a compute library.

    The extra call follows timing, because a GPU's profiler (CUPTI) slows all later launches in a process.
    """

    name, threat = "libraries", "library"

    def decide(self, run: KernelUnderTest) -> str:
        run.libraries.look_at_operators(run.runner, run.problem)
        run.libraries.look_at_process(run.runner)
        return "; ".join(run.libraries.flags) or "none found"


class TimesMemoryWrites(Check):
    """Time memory writes on the GPU after enough calls, if the reference was slow in the pairs.

    Most of these calls follow random pairs, and resemble the calls of a pair, so a kernel cannot recognize them.
    """

    name, threat = "memory writes", "slow-reference"

    def applies(self, run: KernelUnderTest) -> bool:
        return _is_reference_slow(run)

    def decide(self, run: KernelUnderTest) -> str:
        while len(run.writes_ms) < _PAIRS.least_writes:
            run.time_writes_after_call()
        return f"after {len(run.writes_ms)} calls: {median(run.writes_ms):.4g} ms"


class LeavesTheReferenceAlone(Check):
    """Check that the kernel leaves no work on the GPU that slows the reference.

    Leftover GPU work also slows memory writes; a slow processor does not.
    """

    name, threat = "reference", "slow-reference"

    def applies(self, run: KernelUnderTest) -> bool:
        return _is_reference_slow(run)

    def decide(self, run: KernelUnderTest) -> str:
        beside_ms, alone_ms = _slower_order_ms(run.pairs), run.time_reference_alone()
        if beside_ms <= alone_ms + _slowed_ms(alone_ms):
            return ""
        after_calls_ms, writes_ms = median(run.writes_ms), run.time_writes()
        found = f"the reference took {beside_ms:.4g} ms with this kernel and {alone_ms:.4g} ms alone; "
        found += f"memory writes took {after_calls_ms:.4g} ms after the kernel's calls and {writes_ms:.4g} ms alone"
        if after_calls_ms > writes_ms + _slowed_ms(min(writes_ms, alone_ms)):
            raise Rejected("cheating", SLOWS, found)
        if run.python:  # A slow processor slows the kernel's launches, too.
            run.remarks.append(f"slow processor: {found}")
        else:
            run.pairs.limit_reference(alone_ms)
            run.remarks.append(f"slow processor: {found}; the judge uses the reference's time without the kernel")
        return run.remarks[-1]


def _is_reference_slow(run: KernelUnderTest) -> bool:
    """Return whether the reference was slower in the pairs than before the kernel's process existed.

    On a CPU, a kernel cannot slow the reference, because the judge stops the kernel's process while the reference runs.
    """
    before_ms = run.context.eager_ms
    if run.settings.kind != "cuda" or before_ms is None:
        return False
    return _slower_order_ms(run.pairs) > before_ms + _slowed_ms(before_ms)


def _slower_order_ms(pairs: Pairs) -> float:
    """Return the longer of the reference's two median times, one for each order of the calls in a pair."""
    return max(pairs.reference_medians_ms().values())


def _slowed_ms(usual_ms: float) -> float:
    """Return how much longer than ``usual_ms`` the work may take, in milliseconds."""
    return (_CLOCK.reference_slowed - 1.0) * usual_ms + _CLOCK.reference_slowed_ms


WHILE_LOADING = (NamesNoLibrary(), Loads())
WHILE_CHECKING = (RightOnFreshInputs(), MapsNoLibrary())
WHILE_TIMING = (
    RunsInOneProcess(),
    RightWhileTimed(),
    TimesMemoryWrites(),
    ReportsItsTime(),
    RightAfterTiming(),
    RunsInOneProcess(),
    ExactWhenTimed(),
)
AFTER_TIMING = (UsesNoLibrary(),)
AFTERWARDS = (LeavesTheReferenceAlone(),)
