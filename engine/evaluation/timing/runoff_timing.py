"""Time one problem's correct kernels side by side, because separate verdicts do not order close leaders reliably.

In each round, the judge calls every kernel once on the same buffers, in random order. The ranking uses ratios within
rounds. The judge also verifies these times with its own clock, because a kernel may begin to cheat after its verdict.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from engine.evaluation.correctness import comparison
from engine.evaluation.correctness.output_validation import Answers
from engine.evaluation.judge.problem_context import ProblemContext
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.memory_errors import tells_of_no_memory
from engine.evaluation.rejection import Rejected
from engine.evaluation.sandbox.module_runner import copied_outputs, copies_after_the_clock_ms, runner_for
from engine.evaluation.sandbox.resource_limits import limits_of
from engine.evaluation.sandbox.runner import Runner, RunnerEnded
from engine.evaluation.timing import statistics
from engine.evaluation.timing.call_overhead import CallOverhead
from engine.evaluation.timing.clocks import CallLimits, check_report
from engine.evaluation.timing.cpu_contention import CpuContention, on_one_core
from engine.evaluation.timing.wall_clock_probe import WallClockProbe
from engine.session.records.verdict import BUSY, Standing

_RUNOFF = POLICY.runoff


class FoundOut(RunnerEnded):
    """A kernel that passed its checks but failed in the runoff. ``variant``: the kernel's id. ``fault``: a clause such
    as "is wrong".
    """

    def __init__(self, variant: str, fault: str, reason: object) -> None:
        super().__init__("error", f"{variant} passed its checks but {fault} in the runoff: {reason}")
        self.variant = variant


def run_runoff(
    opened: ProblemContext, libraries: Mapping[str, Path], cancelled: Callable[[], bool]
) -> tuple[Standing, ...]:
    """Return the standings, fastest first. Raises ``FoundOut`` if a correct kernel now fails, and ``RunnerEnded`` for
    other failures.
    """
    with ExitStack() as stack:
        runoff = _Runoff(opened, libraries, stack, cancelled)
        runoff.take_rounds()
        try:
            return runoff.standings()
        except FoundOut:
            runoff.take_rounds()  # These times replace the earlier times, so cheating in earlier calls gains nothing.
            return runoff.standings()


class _Runoff:
    """The kernels of one runoff, and their times in the last rounds. Closing ``stack`` ends the kernels' runners."""

    def __init__(
        self,
        opened: ProblemContext,
        libraries: Mapping[str, Path],
        stack: ExitStack,
        cancelled: Callable[[], bool],
    ) -> None:
        problem, settings = opened.judged, opened.settings
        self._opened, self._settings, self._libraries = opened, settings, libraries
        self._margin = _RUNOFF.tied[settings.kind]
        self._runners: dict[str, Runner] = {}
        self._bound: set[str] = set()
        """Kernels that use the weights in the judge's buffers."""
        for name, library in libraries.items():
            limits = limits_of(problem.spec, settings, opened.eager_ms, library.suffix == ".py")
            limits = replace(limits, call_s=settings.deadline_s)
            self._runners[name] = stack.enter_context(runner_for(library, settings, limits, cancelled))
            with _blaming(name):
                loaded = self._runners[name].load(library, problem)
            if loaded.keeps_weights:  # All kernels then use the model's initial weights.
                problem = problem.with_own_weights()
            else:
                self._bound.add(name)
        python = [self._runners[name].pid for name, library in libraries.items() if library.suffix == ".py"]
        self._launching = python if settings.kind == "cuda" else []
        """Processes that launch GPU work from Python. Their times depend on the core's speed."""
        self._problem = problem
        tolerances = comparison.Tolerances(settings.tolerance_fp32, settings.tolerance_other)
        self._check = partial(Answers(tolerances).check, problem)
        # Outputs of a model that writes buffers or draws random numbers depend on more than its inputs.
        self._compares = not problem.mutates and not problem.spec.random
        self._contention = CpuContention(opened.empty_kernel.pid, *(runner.pid for runner in self._runners.values()))
        self._call_overhead = CallOverhead()
        self._times: dict[str, list[float]] = {}
        self._walls: dict[str, list[float]] = {}

    def take_rounds(self) -> None:
        """Time rounds until the order is settled or the runoff reaches its time limit. Raises ``FoundOut`` and
        ``RunnerEnded``.
        """
        self._call_overhead.clear()
        self._times = {name: [] for name in self._libraries}
        self._walls = {name: [] for name in self._libraries}
        started = time.perf_counter()
        for number in range(-1, _RUNOFF.most_rounds):
            with on_one_core(*self._launching) if self._launching else nullcontext():
                self._take_round(number)
            if number + 1 < _RUNOFF.least_rounds:
                continue
            if is_settled(self._times, self._margin) or time.perf_counter() - started > _RUNOFF.budget_s:
                break

    def _take_round(self, number: int) -> None:
        problem, arena = self._problem, self._problem.arena
        slot_index = random.randrange(len(arena.slots))
        slot = arena.slots[slot_index]
        self._opened.load_timed(problem, max(number, 0), slot, problem.fresh_seed())
        checked = random.random() < _RUNOFF.checked
        expected = problem.run(slot) if self._compares and checked else None
        before = comparison.checksum(slot.unwritable) if expected is not None else ()
        exact = cache(partial(problem.in_double, slot, lambda: None))  # No kernel has written its inputs yet.
        for name in random.sample(list(self._libraries), len(self._libraries)):
            slot.poison(number % 2)
            problem.device.synchronize()
            runner, seed = self._runners[name], problem.call_seed()
            untimed = self._opened.untimed_slots(slot_index) if runner.launches_from_python else ()
            check_untimed = self._opened.load_untimed(problem, untimed, seed, self._check)
            with _blaming(name):
                own, wall_ms = runner.call([slot_index], problem.device.flushes, seed, untimed=untimed)
                if checked:
                    check_untimed()
            if expected is not None:
                if comparison.checksum(slot.unwritable) != before:
                    raise FoundOut(name, "is wrong", "the kernel wrote to its inputs")
                with _blaming(name):
                    self._check(slot, expected, number % 2, f"round {number + 1}", exact)
            if number >= 0:  # The first round serves only to warm up.
                self._times[name].append(own[0])
                self._walls[name].append(wall_ms)
        self._opened.empty_kernel.call(self._call_overhead)

    def standings(self) -> tuple[Standing, ...]:
        """Verify the times with the judge's clock, and rank the kernels. Raises ``FoundOut`` and ``RunnerEnded``.

        The judge times one kernel's batches after another's, not side by side. If other programs disturbed the batches
        of a kernel, the excess that they show is no evidence, so the kernel's place is uncertain.
        """
        confirmed: dict[str, list[float]] = {}
        disturbed: set[str] = set()
        for name, runner in self._runners.items():
            reported, limits = self._times[name], self._limits(name)
            counted = [limits.counted_ms(*both) for both in zip(reported, self._walls[name], strict=True)]
            on_processor = self._settings.kind == "cpu" or limits.python
            contended = on_processor and self._contention.share() > BUSY
            probe = WallClockProbe(self._problem, runner, self._opened.empty_kernel, self._check, contended=contended)
            with _blaming(name):
                excess_ms, _ = probe.excess_ms(median(reported), median(counted), limits)
                confirmed[name] = [ms + excess_ms for ms in counted]
                check_report(reported, confirmed[name], contended=probe.contended)
            if excess_ms > 0.0 and probe.contended:
                disturbed.add(name)
        return standings(confirmed, self._margin, disturbed)

    def _limits(self, name: str) -> CallLimits:
        python = self._libraries[name].suffix == ".py"
        return CallLimits(
            kind=self._settings.kind,
            overhead=self._call_overhead,
            copy_ms=copies_after_the_clock_ms(self._problem, self._runners[name]) if python else None,
            copied=copied_outputs(self._problem, self._runners[name]) if python else 0,
            binds_ms=self._problem.binds_ms if name in self._bound else (),
            untimed=self._opened.untimed_calls if python else 0,
            least_ms=self._problem.device.least_ms(),
        )


@contextmanager
def _blaming(variant: str) -> Iterator[None]:
    """Raise ``FoundOut`` for ``variant`` if its runner ends within the block or a check rejects it. A lack of device
    memory is not the kernel's fault, because the runoff keeps all leaders' processes alive.
    """
    try:
        yield
    except Rejected as rejected:
        raise FoundOut(variant, f"is {rejected.status.replace('_', ' ')}", rejected.reason) from None
    except RunnerEnded as ended:
        if ended.end == "cancelled":
            raise
        if tells_of_no_memory(str(ended)):
            raise RunnerEnded("error", f"the device has too little memory for all leaders at once: {ended}") from None
        raise FoundOut(variant, "its process ended", ended) from None


def is_settled(times_ms: Mapping[str, list[float]], margin: float) -> bool:
    """Return whether every kernel is clearly slower than the fastest kernel or has a ratio known within ``margin``.
    Pure.
    """
    fastest = _fastest(times_ms)
    for own in times_ms.values():
        ratios = _ratios(own, times_ms[fastest])
        _, low, high = statistics.median_interval(ratios)
        # Require high confidence. If the runoff stopped at the first difference, it would eventually separate a kernel
        # from an exact copy.
        _, surely_above, _ = statistics.median_interval(ratios, _RUNOFF.sure)
        if surely_above <= 1.0 + margin and high - low > 2 * min(margin, _RUNOFF.narrow):
            return False
    return True


def standings(
    times_ms: Mapping[str, list[float]], margin: float, disturbed: Container[str] = ()
) -> tuple[Standing, ...]:
    """Rank kernels by their time within rounds, relative to the fastest kernel. Kernels within ``margin`` tie. The
    times of ``disturbed`` kernels are uncertain. Pure.
    """
    scores, fastest = _scores(times_ms), _fastest(times_ms)
    rows = []
    for name, own in times_ms.items():
        _, low, high = statistics.median_interval(_ratios(own, times_ms[fastest]))
        ratio = scores[name] / scores[fastest]
        low, high, uncertain = min(low, ratio), max(high, ratio), name in disturbed
        tied = low <= 1.0 + margin
        rows.append(Standing(name, median(own), ratio, low, high, tied=tied, uncertain=uncertain))
    return tuple(sorted(rows, key=lambda row: (row.variant != fastest, row.ratio, row.variant)))


def _fastest(times_ms: Mapping[str, list[float]]) -> str:
    scores = _scores(times_ms)
    return min(scores, key=lambda name: (scores[name], name))


def _scores(times_ms: Mapping[str, list[float]]) -> dict[str, float]:
    """Return each kernel's time relative to the mean of its round, as a median over rounds. Unlike medians of ratios,
    these scores always produce a consistent order.
    """
    means = [sum(one) / len(one) for one in zip(*times_ms.values(), strict=True)]
    return {name: median(_ratios(own, means)) for name, own in times_ms.items()}


def _ratios(own_ms: Sequence[float], base_ms: Sequence[float]) -> list[float]:
    return [own / base for own, base in zip(own_ms, base_ms, strict=True)]
