"""Run deferred work while the devices are idle.

Deferred work includes ``torch.compile`` baselines, repeats of disturbed baselines, and runoffs that the budget cut
short. It also includes second verdicts on best kernels with uncertain speedups, and checks of best kernels at other
sizes.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from engine.evaluation.evaluator import EvaluationError
from engine.search.context import Context
from engine.search.final_check import FinalCheck
from engine.search.problem_search import ProblemSearch
from engine.session.budget import RESERVE_SHARE
from engine.session.records.events import (
    RESERVED,
    AnyEvent,
    BaselineMeasured,
    BudgetChanged,
    LogLine,
    StopCanceled,
    VerdictGiven,
)
from engine.session.records.skipped_compile import skipped_compile, stopped_work, timing_compile
from engine.session.records.speedup_text import WIDE, interval
from engine.session.records.verdict import BUSY, UNJUDGED, Baseline, Verdict
from engine.session.records.verdict_text import (
    eager_change,
    interval_width,
    is_disturbed,
    is_uncertain,
    speedup_words,
)
from engine.session.state.session_state import VariantState
from engine.system import clock

COMPILE_GUESS_S = 20.0
"""Expected duration of the first ``torch.compile`` baseline, in seconds."""
LAST_S = 5.0
"""Expected duration of a problem's last runoff and a second verdict on its best kernel, in seconds."""
COMPILE_SHARE = 0.5
"""Maximum share of a turn that the ``torch.compile`` baseline may take from the search. A longer measurement runs after
the search, in the rest of the turn and in time that no problem claims.
"""
RESERVES_SHARE = 0.6
"""Maximum share of a turn to reserve for all work after the search, so that short turns still search."""
CUT_OFF = 1.5
"""Expected duration of a ``torch.compile`` baseline that the turn's end stopped, as a multiple of its elapsed time."""
LEAST_S = 1.0
"""Minimum time left at which a runoff or a second verdict is worth starting, in seconds."""


class TurnLimit(NamedTuple):
    """Limit of a turn: ``seconds`` of engine time. ``spare_s``: seconds that no problem claims. Only a missing
    ``torch.compile`` baseline uses the spare seconds, because the report includes this baseline.
    ``searched``: whether the problem's search has ended, so that ``torch.compile`` may use the rest of the turn.
    """

    seconds: float
    spare_s: float
    searched: bool = False


class _Job(NamedTuple):
    """A running job. ``began_s``: the turn's elapsed time at the job's start. ``what`` describes the job. ``compiles``:
    whether the job measures ``torch.compile``. ``uses_spare``: whether the job may use the turn's spare seconds.
    """

    task: asyncio.Task[None]
    what: str
    began_s: float
    compiles: bool
    uses_spare: bool


class Owed:
    """Run deferred work, one job at a time. ``spawn`` runs a job alongside the search, then wakes the search."""

    def __init__(
        self,
        context: Context,
        problems: Mapping[str, ProblemSearch],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._context, self._problems, self._spawn = context, problems, spawn
        self._final_check = FinalCheck(context, problems)
        self._compile_s: list[float] = []
        self._judged_again: set[str] = set()
        self._compiled_again: set[str] = set()
        self._skipped: set[str] = set()
        self._limit: TurnLimit | None = None
        self._job: _Job | None = None
        self.busy = False
        self.drained_at: float | None = None
        """End of the last evaluation, round or pause that delays deferred work after the budget's end, on the monotonic
        clock. The value is None before the budget's end.
        """
        context.journal.listen(self._heard)

    def _heard(self, event: AnyEvent) -> None:
        """After an event that clears reasons in the state, allow new log lines for these problems."""
        if isinstance(event, StopCanceled) or (isinstance(event, BudgetChanged) and event.minutes is not None):
            problems = self._context.state.problems
            self._skipped = {name for name in self._skipped if problems[name].compile_skipped}

    def limit(self, limit: TurnLimit | None) -> None:
        """Set the limit of the open turn, or remove it."""
        self._limit = limit

    def end_late(self) -> None:
        """Cancel the running job if the turn has no time left for it.

        Cancel a job only once, because a second cancellation would interrupt the cleanup of its processes.
        """
        if (job := self._job) is None:
            return
        left_s = self._compile_left_s(job.began_s) if job.uses_spare else self._left_s()
        if left_s <= 0 and job.task.cancel():
            self._job = None
            text = stopped_work(job.what, "the problem's time is used up")
            self._context.journal.post(LogLine(level="info", text=text))

    def cancel_compile(self, why: str) -> None:
        """Cancel a running measurement of ``torch.compile``, and log the reason ``why``."""
        if (job := self._job) is not None and job.compiles and job.task.cancel():
            self._job = None
            text = stopped_work(job.what, why)
            self._context.journal.post(LogLine(level="info", text=text))

    def log_skipped_baselines(self) -> None:
        """Log once which ``torch.compile`` baselines the budget has no time for. After a resume with more time, the
        search measures them.
        """
        self._tell_skipped(self._baselines(), "budget", self.overrun_left_s)

    @property
    def overrun_left_s(self) -> float:
        """Seconds until the end of the budget's overrun. The overrun begins at the budget's end or at the end of the
        last work in flight, whichever is later. Without a budget, the number is infinite.
        """
        late_s = -self._context.left_s()
        if self.drained_at is not None:
            late_s = min(late_s, time.monotonic() - self.drained_at)
        return self._context.budget.overrun_s - late_s

    @property
    def _turn_s(self) -> float:
        return self._context.state.turn_s(clock.now())

    def _left_s(self) -> float:
        """Seconds left in the open turn; infinite without a limit."""
        return self._limit.seconds - self._turn_s if self._limit is not None else float("inf")

    def _compile_left_s(self, began_s: float | None = None) -> float:
        """Seconds left for a ``torch.compile`` baseline that began ``began_s`` into the turn, or that begins now."""
        if self._limit is None:
            return float("inf")
        left_s = self._left_s() + self._limit.spare_s
        if self._limit.searched:
            return left_s
        return min(left_s, self._compile_share_s - (self._turn_s - began_s if began_s is not None else 0.0))

    @property
    def turn_reserve_s(self) -> float:
        """Time that the turn reserves for deferred work, in seconds."""
        if self._limit is None:
            return 0.0
        last_s = LAST_S + self._final_check.reserve_s
        reserve_s = min(last_s, RESERVE_SHARE * self._limit.seconds) + self.compile_reserve_s
        return min(reserve_s, RESERVES_SHARE * self._limit.seconds)

    @property
    def compile_reserve_s(self) -> float:
        """Expected duration of the turn's ``torch.compile`` baselines in seconds, or 0 if too long for a turn."""
        expected_s = self._expected_compile_s * len(self._baselines())
        return expected_s if expected_s <= self._compile_share_s else 0.0

    @property
    def _compile_share_s(self) -> float:
        """Maximum time that ``torch.compile`` may take from the problem's search, in seconds."""
        return COMPILE_SHARE * self._limit.seconds if self._limit is not None else float("inf")

    @property
    def _expected_compile_s(self) -> float:
        return statistics.median(self._compile_s or [COMPILE_GUESS_S])

    @property
    def reserve_s(self) -> float:
        """Expected duration of the deferred work that the search must not skip, in seconds."""
        compile_s = max(self._compile_s, default=COMPILE_GUESS_S) * len(self._baselines())
        doubtful = {best.problem for best in self._doubtful_bests()}
        last = sum(name in doubtful or not problem.at_rest for name, problem in self._problems.items())
        return compile_s + LAST_S * last + self._final_check.reserve_s

    def start_baseline(self) -> None:
        """Start a missing ``torch.compile`` baseline of a problem with verdicts, if the turn has time for it."""
        judged = [name for name in self._baselines() if self._has_verdict(name)]
        if judged and self._compile_left_s() >= self._expected_compile_s:
            self._start(self._compile(judged[0]), timing_compile(judged[0]), compiles=True, uses_spare=True)

    def start_any(self) -> None:
        """Start one job of deferred work, if the turn has time for any. Work that decides which kernel is best comes
        first, but second verdicts do not use the time that ``torch.compile`` needs.
        """
        worthwhile = self._left_s() - self.compile_reserve_s >= LEAST_S
        doubtful = self._doubtful_bests() if worthwhile else []
        runoffs = [problem for problem in self._problems.values() if problem.owes_runoff]
        if runoffs and worthwhile:
            self._start(runoffs[0].last_runoff(), f"timing the leaders of {runoffs[0].id} side by side")
        elif doubtful and self._spares_time():
            self._start(self._judge_again(doubtful[0]), f"judging {doubtful[0].id} again")
        elif names := self._affordable_baselines():
            self._start(self._compile(names[0]), timing_compile(names[0]), compiles=True, uses_spare=True)
        elif doubtful:
            self._start(self._judge_again(doubtful[0]), f"judging {doubtful[0].id} again")
        elif again := self._disturbed_baselines():
            self._start(self._compile_again(again[0]), f"{timing_compile(again[0])} again", compiles=True)
        elif self._left_s() >= self._final_check.reserve_s and (winners := self._final_check.owed()):
            self._start(self._final_check.check(winners[0]), f"judging the best kernel of {winners[0]} at other sizes")

    def _start(
        self, job: Coroutine[Any, Any, None], what: str, *, compiles: bool = False, uses_spare: bool = False
    ) -> None:
        """Start a job. If the time budget is used up, log ``what`` to explain why work continues."""

        async def alone() -> None:
            if self._context.ending == "budget":
                await self._context.journal.record(LogLine(level="info", text=f"{RESERVED}{what}"))
            await job

        def ended(_: asyncio.Task[None]) -> None:
            job.close()
            self._job, self.busy = None, False

        task = self._spawn(alone())
        self._job, self.busy = _Job(task, what, self._turn_s, compiles, uses_spare), True
        task.add_done_callback(ended)

    def _baselines(self) -> list[str]:
        """Problems that lack a ``torch.compile`` baseline. The list is empty if the search leaves the baselines to a
        resume.
        """
        context = self._context
        return [] if context.leaves_compile else [name for name in self._problems if context.lacks_compile(name)]

    def _affordable_baselines(self) -> list[str]:
        """Problems without a ``torch.compile`` baseline. If the turn or the budget has no time for the baseline, log
        this once and return an empty list. Before the first measurement, the duration is unknown, so the check ignores
        the budget.
        """
        names, left_s = self._baselines(), self._compile_left_s()
        whose = "turn"
        if self._compile_s and self.overrun_left_s < left_s:
            left_s, whose = self.overrun_left_s, "budget"
        if left_s >= self._expected_compile_s:
            return names
        self._tell_skipped(names, whose, left_s)
        return []

    def _tell_skipped(self, names: Sequence[str], whose: str, left_s: float) -> None:
        """Log once per time budget that there is no time for the baselines of ``names``."""
        for name in names:
            if name not in self._skipped:
                self._skipped.add(name)
                text = skipped_compile(name, self._expected_compile_s, whose, left_s)
                self._context.journal.post(LogLine(level="info", text=text))

    def _spares_time(self) -> bool:
        """Return whether the time budget has time for a second verdict besides all missing baselines.

        The first baseline may take long, because it fills the compiler's caches.
        """
        needed_s = max(self._compile_s, default=2 * COMPILE_GUESS_S) * len(self._baselines())
        return needed_s == 0.0 or self.overrun_left_s - needed_s >= LAST_S

    def _has_verdict(self, problem: str) -> bool:
        return any(variant.verdict is not None for variant in self._context.state.variants_of(problem))

    def _disturbed_baselines(self) -> list[str]:
        """Problems whose ``torch.compile`` baseline other programs disturbed. The list is empty if there is no time to
        repeat the baseline.
        """
        state = self._context.state
        too_late = min(self._left_s(), self._context.left_s()) < self._expected_compile_s
        if too_late or self._context.leaves_compile:
            return []
        return [
            name
            for name in self._problems
            if name not in self._compiled_again
            and (compiled := state.problems[name].baselines.get("compile")) is not None
            and is_disturbed(compiled)
            and not state.is_pruned(name)
        ]

    async def _compile(self, problem: str) -> None:
        baseline = await self._compiled(problem)
        await self._context.journal.record(
            BaselineMeasured(problem=problem, baseline=baseline, seconds=self._compile_s[-1])
        )

    async def _compile_again(self, problem: str) -> None:
        """Measure a baseline once more, and keep the less disturbed result."""
        self._compiled_again.add(problem)
        before, now = self._context.state.problems[problem].baselines["compile"], await self._compiled(problem)
        if now.timing is not None and now.others < before.others:
            await self._context.journal.record(
                BaselineMeasured(problem=problem, baseline=now, seconds=self._compile_s[-1])
            )

    async def _compiled(self, problem: str) -> Baseline:
        context, began, factor = self._context, time.monotonic(), 1.0
        try:
            return await context.evaluator.compile_baseline(context.state.problems[problem].spec)
        except EvaluationError as error:
            return Baseline(which="compile", failure=str(error))
        except asyncio.CancelledError:
            factor = CUT_OFF
            self._skipped.add(problem)
            raise
        finally:
            self._compile_s.append(factor * (time.monotonic() - began))

    def _doubtful_bests(self) -> list[VariantState]:
        """Best kernels whose speedup is uncertain, or that the judge timed when the machine was faster or slower than
        during the eager baseline.
        """
        state = self._context.state
        bests = [state.variants[problem.best] for problem in state.problems.values() if problem.best is not None]
        return [
            best
            for best in bests
            if best.problem in self._problems
            and not state.is_pruned(best.problem)
            and best.id not in self._judged_again
            and best.verdict is not None
            and (is_uncertain(best.verdict) or self._changed(best.problem, best.verdict))
        ]

    def _changed(self, problem: str, verdict: Verdict) -> bool:
        """Return whether eager's time in the verdict differs clearly from its times in the eager baseline and right
        after ``torch.compile``. Return False for a cluster, whose hosts may differ in speed.
        """
        baselines = self._context.state.problems[problem].baselines
        compiled, paired = baselines.get("compile"), verdict.reference
        changes = [eager_change(verdict, baselines.get("eager"))]
        if compiled is not None and compiled.eager_ms is not None and paired is not None:
            changes.append(max(compiled.eager_ms, paired.median_ms) / min(compiled.eager_ms, paired.median_ms) - 1.0)
        return not verdict.host and min(changes) > WIDE

    def _doubt(self, problem: str, verdict: Verdict) -> tuple[bool, bool, bool, bool, float]:
        """Return a key that is larger for a less certain speedup."""
        width, changed = interval_width(verdict), self._changed(problem, verdict)
        return verdict.slow_host is not None, verdict.others > BUSY, width > WIDE, changed, width

    async def _judge_again(self, best: VariantState) -> None:
        """Judge a best kernel once more. Keep the new verdict if its speedup is more certain or if the kernel fails."""
        context, before = self._context, best.verdict
        self._judged_again.add(best.id)
        spec, source = context.state.problems[best.problem].spec, context.sources.text(best.source)
        try:
            verdict = await context.evaluator.evaluate(spec, best.language, source, lambda stage: None)
        except EvaluationError as error:
            verdict = Verdict(status="error", reason=str(error))
        counts = verdict.status not in UNJUDGED
        if verdict.correct and before is not None:
            counts = self._doubt(best.problem, verdict) < self._doubt(best.problem, before)
        now = f"now {_words(verdict)}" if counts else "the engine keeps the first verdict"
        changed = before is not None and self._changed(best.problem, before)
        why = ", when the machine was faster or slower than during the eager baseline" if changed else ""
        what = f"the judge evaluated the best kernel {best.id} again (previously: {_words(before)}{why})"
        text = f"{best.problem}: {what}; {now}"
        await context.journal.record(LogLine(level="info", text=text))
        if counts:
            await context.journal.record(VerdictGiven(variant=best.id, verdict=verdict, why=text))


def _words(verdict: Verdict | None) -> str:
    if verdict is None or verdict.speedup is None:
        return verdict.status if verdict is not None else "nothing"
    return f"{speedup_words(verdict)} ({interval(verdict.speedup_low, verdict.speedup_high)})"
