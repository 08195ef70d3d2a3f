"""What a search owes beside its verdicts and does when the devices have nothing better to do: baselines of
torch.compile, once more those that were disturbed, the heat of a round that the budget has ended, a second verdict on a
winner that was disturbed, and winners at other sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from engine.events import BaselineMeasured, LogLine, VerdictGiven
from engine.search.context import Context
from engine.search.final_check import FinalCheck
from engine.search.rounds import ProblemSearch
from engine.state import VariantState
from engine.verdict import UNJUDGED, Baseline, Verdict
from engine.workers.protocol import EvaluationError

COMPILE_GUESS_S = 20.0
"""What ``torch.compile`` of a problem is expected to take until one was measured."""
LAST_S = 5.0
"""What the last heat of a problem and a second verdict on its winner are expected to take."""


class Owed:
    """Does one owed thing at a time. ``spawn`` runs a job beside the search and wakes it when the job is over."""

    def __init__(
        self,
        context: Context,
        problems: Mapping[str, ProblemSearch],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._context, self._problems, self._spawn = context, problems, spawn
        self._final_check = FinalCheck(context)
        self._compile_s: list[float] = []
        self._judged_again: set[str] = set()
        self._compiled_again: set[str] = set()
        self.busy = False

    @property
    def reserve_s(self) -> float:
        """Seconds that what is owed will take."""
        owed = len(self._baselines()) + len(self._disturbed_baselines())
        compile_s = max(self._compile_s, default=COMPILE_GUESS_S) * owed
        return compile_s + LAST_S * len(self._problems) + self._final_check.reserve_s

    def start_baseline(self) -> None:
        """Measure one of a problem that has verdicts, if there is any."""
        if judged := [name for name in self._baselines() if self._has_verdict(name)]:
            self._start(self._compile(judged[0]), f"torch.compile of {judged[0]}")

    def start_any(self) -> None:
        """Nothing else is left to do: what decides who wins comes first."""
        heats = [problem for problem in self._problems.values() if problem.owes_heat]
        if heats:
            self._start(heats[0].last_heat(), f"the last heat of {heats[0].id}")
        elif disturbed := self._disturbed():
            self._start(self._judge_again(disturbed[0]), f"a second verdict on {disturbed[0].id}")
        elif names := self._baselines():
            self._start(self._compile(names[0]), f"torch.compile of {names[0]}")
        elif again := self._disturbed_baselines():
            self._start(self._compile_again(again[0]), f"torch.compile of {again[0]} once more")
        elif winners := self._final_check.owed():
            self._start(self._final_check.check(winners[0]), f"the best kernel of {winners[0]} at other sizes")

    def _start(self, job: Coroutine[Any, Any, None], what: str) -> None:
        """``what``: said in the log where it is what a search whose minutes are spent still does."""

        async def alone() -> None:
            try:
                if self._context.ending == "budget":
                    text = f"the rest of the minutes is kept for heats and baselines, no new kernel is judged: {what}"
                    await self._context.journal.record(LogLine(level="info", text=text))
                await job
            finally:
                job.close()
                self.busy = False

        self.busy = True
        self._spawn(alone())

    def _baselines(self) -> list[str]:
        """Problems whose ``torch.compile`` baseline is not measured yet."""
        if not self._context.config.evaluation.torch_compile:
            return []
        state = self._context.state
        return [
            name
            for name in self._problems
            if "compile" not in state.problems[name].baselines and not state.is_pruned(name)
        ]

    def _has_verdict(self, problem: str) -> bool:
        return any(variant.verdict is not None for variant in self._context.state.variants_of(problem))

    def _disturbed_baselines(self) -> list[str]:
        """Problems whose ``torch.compile`` was timed on a busy machine, which may be quieter now."""
        state = self._context.state
        return [
            name
            for name in self._problems
            if name not in self._compiled_again
            and (compiled := state.problems[name].baselines.get("compile")) is not None
            and compiled.disturbed
            and not state.is_pruned(name)
        ]

    async def _compile(self, problem: str) -> None:
        await self._context.journal.record(BaselineMeasured(problem=problem, baseline=await self._compiled(problem)))

    async def _compile_again(self, problem: str) -> None:
        """Once. Who was disturbed less counts."""
        self._compiled_again.add(problem)
        before, now = self._context.state.problems[problem].baselines["compile"], await self._compiled(problem)
        if now.timing is not None and now.others < before.others:
            await self._context.journal.record(BaselineMeasured(problem=problem, baseline=now))

    async def _compiled(self, problem: str) -> Baseline:
        context, began = self._context, time.monotonic()
        try:
            return await context.evaluator.compile_baseline(context.state.problems[problem].spec)
        except EvaluationError as error:
            return Baseline(which="compile", failure=str(error))
        finally:
            self._compile_s.append(time.monotonic() - began)

    def _disturbed(self) -> list[VariantState]:
        """Best kernels whose factor is hardly known: other programs had a hand in it."""
        state = self._context.state
        bests = [state.variants[problem.best] for problem in state.problems.values() if problem.best is not None]
        return [
            best
            for best in bests
            if best.problem in self._problems
            and not state.is_pruned(best.problem)
            and best.id not in self._judged_again
            and best.verdict is not None
            and best.verdict.hardly_known
        ]

    async def _judge_again(self, best: VariantState) -> None:
        """Once. What is better known then counts, and so does what it is found out in."""
        context, before = self._context, best.verdict
        self._judged_again.add(best.id)
        spec, source = context.state.problems[best.problem].spec, context.sources.text(best.source)
        try:
            verdict = await context.evaluator.evaluate(spec, best.form, source, lambda stage: None)
        except EvaluationError as error:
            verdict = Verdict(status="error", reason=str(error))
        counts = verdict.status not in UNJUDGED
        if verdict.correct and before is not None:
            counts = verdict.relative_width < before.relative_width
        now = f"{_words(verdict)} now" if counts else "no better known now"
        text = f"{best.problem}: {best.id}, the best at {_words(before)}, was judged once more: {now}"
        await context.journal.record(LogLine(level="info", text=text))
        if counts:
            await context.journal.record(VerdictGiven(variant=best.id, verdict=verdict, why=text))


def _words(verdict: Verdict | None) -> str:
    if verdict is None or verdict.speedup is None:
        return verdict.status if verdict is not None else "nothing"
    return f"{verdict.factor} [{verdict.speedup_low:.2f}, {verdict.speedup_high:.2f}]"
