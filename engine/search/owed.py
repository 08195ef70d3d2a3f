"""What a search owes beside its verdicts and does when the devices have nothing better to do: baselines of
torch.compile, the heat of a round that the budget has ended, winners at other sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from engine.events import BaselineMeasured
from engine.search.context import Context
from engine.search.final_check import FinalCheck
from engine.search.rounds import ProblemSearch
from engine.verdict import Baseline
from engine.workers.protocol import EvaluationError

COMPILE_GUESS_S = 20.0
"""What ``torch.compile`` of a problem is expected to take until one was measured."""
HEAT_S = 3.0
"""What the last heat of a problem is expected to take."""


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
        self.busy = False

    @property
    def reserve_s(self) -> float:
        """Seconds that what is owed will take."""
        compile_s = max(self._compile_s, default=COMPILE_GUESS_S) * len(self._baselines())
        heats_s = HEAT_S * len(self._problems) if self._context.config.search.heat >= 2 else 0.0
        return compile_s + heats_s + self._final_check.reserve_s

    def start_baseline(self) -> None:
        """Measure one of a problem that has verdicts, if there is any."""
        if judged := [name for name in self._baselines() if self._has_verdict(name)]:
            self._start(self._compile(judged[0]))

    def start_any(self) -> None:
        """Nothing else is left to do: what decides who wins comes first."""
        heats = [problem for problem in self._problems.values() if problem.owes_heat]
        if heats:
            self._start(heats[0].last_heat())
        elif names := self._baselines():
            self._start(self._compile(names[0]))
        elif winners := self._final_check.owed():
            self._start(self._final_check.check(winners[0]))

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        async def alone() -> None:
            try:
                await job
            finally:
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

    async def _compile(self, problem: str) -> None:
        context, began = self._context, time.monotonic()
        try:
            baseline = await context.evaluator.compile_baseline(context.state.problems[problem].spec)
        except EvaluationError as error:
            baseline = Baseline(which="compile", failure=str(error))
        self._compile_s.append(time.monotonic() - began)
        await context.journal.record(BaselineMeasured(problem=problem, baseline=baseline))
