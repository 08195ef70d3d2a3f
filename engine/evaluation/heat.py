"""A heat: correct kernels of one problem timed side by side, so that the order of leaders is not luck.

Each round calls every kernel once on the same buffers, in a fresh order; ranks rest on ratios within rounds. Their
clocks are confirmed here as well: a kernel may have been honest while it was judged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from statistics import median

import torch
from msgspec.structs import replace

from engine.evaluation import checks, timing
from engine.evaluation.allowances import limits_of
from engine.evaluation.answers import Answers
from engine.evaluation.arena import Slot
from engine.evaluation.clock import Clock
from engine.evaluation.control import Control
from engine.evaluation.module_runner import copies_after_the_clock_ms, runner_for
from engine.evaluation.nearness import Exact, compare_in_double
from engine.evaluation.neighbours import Neighbours
from engine.evaluation.opened import OpenedProblem
from engine.evaluation.outside import Outside, confirm
from engine.evaluation.rejected import Rejected
from engine.evaluation.sandbox import Runner, RunnerEnded
from engine.evaluation.trials import JudgedProblem
from engine.verdict import Standing

LEAST_ROUNDS = 12
MOST_ROUNDS = 60
_BUDGET_S = 2.0
_NARROW = 0.01
_SURE = 0.999
"""The confidence at which a kernel is slower without any further round."""
_REFERENCE_CALLS = 3
_CHECKED = 0.3
"""The share of rounds whose outputs are compared: nothing tells a kernel which."""
NO_DIFFERENCE = {"cpu": 0.03, "cuda": 0.01}
"""Kernels whose interval reaches this near to the fastest are tied with it: two processes with the same code, each with
memory of its own, differ so much, and so much do verdicts on one kernel."""


class FoundOut(RunnerEnded):
    """``variant``, which was right when it was judged, did in the heat what its text says."""

    def __init__(self, variant: str, text: str) -> None:
        super().__init__("error", f"{variant}, which was right when it was judged, {text}")
        self.variant = variant


def run_heat(
    opened: OpenedProblem, libraries: Mapping[str, Path], cancelled: Callable[[], bool]
) -> tuple[Standing, ...]:
    """Standings, fastest first. Raises ``FoundOut`` when a kernel that was correct now fails, else ``RunnerEnded``."""
    with ExitStack() as stack:
        heat = _Heat(opened, libraries, stack, cancelled)
        heat.take_rounds()
        try:
            return standings(heat.confirmed(), heat.margin)
        except FoundOut:
            heat.take_rounds()  # whose times count instead, so what one gained before is lost
            return standings(heat.confirmed(), heat.margin)


class _Heat:
    """Kernels in runners that live as long as ``stack``, and their times by the rounds taken last."""

    def __init__(
        self,
        opened: OpenedProblem,
        libraries: Mapping[str, Path],
        stack: ExitStack,
        cancelled: Callable[[], bool],
    ) -> None:
        problem, settings = opened.judged, opened.settings
        self._opened, self._settings, self._libraries = opened, settings, libraries
        self.margin = NO_DIFFERENCE[settings.kind]
        self._runners: dict[str, Runner] = {}
        for name, library in libraries.items():
            limits = limits_of(problem.spec, settings, opened.eager_ms, library.suffix == ".py")
            limits = replace(limits, call_s=settings.deadline_s)
            self._runners[name] = stack.enter_context(runner_for(library, settings, limits, cancelled))
            with _blaming(name):
                loaded = self._runners[name].load(library, problem)
            if loaded.keeps_weights:  # then all of them are timed with the weights that it was built with
                problem = problem.with_own_weights()
        self._problem = problem
        self._reference_ms = median(problem.time_reference(_REFERENCE_CALLS))
        self._tolerances = checks.Tolerances(settings.tolerance_fp32, settings.tolerance_other)
        self._neighbours = Neighbours(opened.empty_kernel.pid, *(runner.pid for runner in self._runners.values()))
        self._empty_calls = Control()
        self._times: dict[str, list[float]] = {}
        self._walls: dict[str, list[float]] = {}

    def take_rounds(self) -> None:
        """Rounds until the order is settled or the time for them is spent. Raises ``FoundOut`` and ``RunnerEnded``."""
        self._empty_calls.clear()
        self._times = {name: [] for name in self._libraries}
        self._walls = {name: [] for name in self._libraries}
        started = time.perf_counter()
        for number in range(-1, MOST_ROUNDS):
            self._take_round(number)
            if number + 1 < LEAST_ROUNDS:
                continue
            if is_settled(self._times, self.margin) or time.perf_counter() - started > _BUDGET_S:
                break

    def _take_round(self, number: int) -> None:
        problem, arena = self._problem, self._problem.arena
        slot_index = random.randrange(len(arena.slots))
        slot = arena.slots[slot_index]
        self._opened.load_timed(problem, max(number, 0), slot, problem.fresh_seed())
        expected = _expected(problem, slot) if random.random() < _CHECKED else None
        before = checks.checksum(slot.unwritable) if expected is not None else ()
        exact = cache(partial(problem.in_double, slot, lambda: None))  # nobody may have written its inputs
        for name in random.sample(list(self._libraries), len(self._libraries)):
            slot.poison(number % 2)
            problem.device.synchronize()
            warm = self._opened.warming_slot(slot_index)
            with _blaming(name):
                own, wall_ms = self._runners[name].call(
                    [slot_index], problem.device.flushes, problem.call_seed(), warm=warm
                )
            if expected is not None:
                if checks.checksum(slot.unwritable) != before:
                    raise FoundOut(name, "writes its inputs")
                _check(name, slot, expected, exact, self._tolerances)
            if number >= 0:  # the first round only warms up
                self._times[name].append(own[0])
                self._walls[name].append(wall_ms)
        self._opened.empty_kernel.call(self._empty_calls)

    def confirmed(self) -> dict[str, list[float]]:
        """The times, compared with the judge's clock: of those calls, and of others that are timed from outside.

        Raises ``FoundOut`` and ``RunnerEnded``.
        """
        confirmed = dict(self._times)
        check = partial(Answers(self._tolerances).check, self._problem)
        for name, runner in self._runners.items():
            outside = Outside(self._problem, runner, self._opened.empty_kernel, check, self._reference_ms)
            try:
                clock = self._clock(name)
                clock.check_calls(self._times[name], self._walls[name])
                _, excess_ms = confirm(clock, self._times[name], outside)
                confirmed[name] = [ms + excess_ms for ms in self._times[name]]
            except Rejected as rejected:
                if rejected.status != "error":  # that is: nothing can be said on a machine this busy
                    raise FoundOut(name, rejected.reason) from None
        return confirmed

    def _clock(self, name: str) -> Clock:
        module, device = self._libraries[name].suffix == ".py", self._problem.device
        return Clock(
            self._settings,
            self._neighbours,
            self._empty_calls,
            copies_after_the_clock_ms(self._problem, self._runners[name]) if module else None,
            warm=module and self._opened.runs_cold,
            least_ms=device.least_ms(),
            in_heat=True,
        )


@contextmanager
def _blaming(variant: str) -> Iterator[None]:
    """Say whose runner it is that ends in the block."""
    try:
        yield
    except RunnerEnded as ended:
        if ended.end == "cancelled":
            raise
        raise FoundOut(variant, f"comes to an end: {ended}") from None


def _expected(problem: JudgedProblem, slot: Slot) -> list[torch.Tensor] | None:
    """The reference's outputs for the slot, None for a model whose outputs depend on more than its inputs."""
    if problem.mutates or problem.spec.random:
        return None
    problem.bind(slot)
    return problem.run(slot)


def _check(name: str, slot: Slot, expected: list[torch.Tensor], exact: Exact, tolerances: checks.Tolerances) -> None:
    found = checks.compare(slot.outputs, expected, tolerances, slot.result_names)
    if found.problem is not None and compare_in_double(slot.outputs, expected, exact, tolerances) is None:
        raise FoundOut(name, f"is wrong: {found.problem}")


def is_settled(times_ms: Mapping[str, list[float]], margin: float) -> bool:
    """Whether every kernel is clearly slower than the fastest, or known within ``margin`` (0.01 is 1 %). Pure."""
    fastest = _fastest(times_ms)
    for own in times_ms.values():
        ratios = _ratios(own, times_ms[fastest])
        _, low, high = timing.median_interval(ratios)
        # Who looks after every round and stops at the first difference finds one between a kernel and its copy.
        _, surely_above, _ = timing.median_interval(ratios, _SURE)
        if surely_above <= 1.0 + margin and high - low > 2 * min(margin, _NARROW):
            return False
    return True


def standings(times_ms: Mapping[str, list[float]], margin: float) -> tuple[Standing, ...]:
    """Rank kernels by how long they took within rounds, in units of the fastest; tied within ``margin``. Pure."""
    scores, fastest = _scores(times_ms), _fastest(times_ms)
    rows = []
    for name, own in times_ms.items():
        _, low, high = timing.median_interval(_ratios(own, times_ms[fastest]))
        ratio = scores[name] / scores[fastest]
        rows.append(
            Standing(name, median(own), ratio, min(low, ratio), max(high, ratio), tied=min(low, ratio) <= 1.0 + margin)
        )
    return tuple(sorted(rows, key=lambda row: (row.variant != fastest, row.ratio, row.variant)))


def _fastest(times_ms: Mapping[str, list[float]]) -> str:
    scores = _scores(times_ms)
    return min(scores, key=lambda name: (scores[name], name))


def _scores(times_ms: Mapping[str, list[float]]) -> dict[str, float]:
    """The median share of each kernel in its rounds' mean. One order for all, as medians of ratios need not give."""
    means = [sum(one) / len(one) for one in zip(*times_ms.values(), strict=True)]
    return {name: median(_ratios(own, means)) for name, own in times_ms.items()}


def _ratios(own_ms: Sequence[float], base_ms: Sequence[float]) -> list[float]:
    return [own / base for own, base in zip(own_ms, base_ms, strict=True)]
