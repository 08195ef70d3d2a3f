"""The final check: correctness and speedup of each problem's best kernel at other input sizes."""

from __future__ import annotations

import time
from collections.abc import Container

from engine.evaluation.at_sizes import judge_at_sizes
from engine.problem.resize import NoOtherSizes, other_sizes
from engine.search.context import Context
from engine.session.records.events import SizesChecked

CHECK_GUESS_S = 10.0
"""Expected duration of the first check, in seconds."""


class FinalCheck:
    """Find best kernels without a check at other sizes, and check them. If another kernel becomes the best, the final
    check covers that kernel, too.
    """

    def __init__(self, context: Context, problems: Container[str]) -> None:
        self._context, self._problems = context, problems
        self._seconds: list[float] = []

    def owed(self) -> list[str]:
        """Return the open problems whose best kernel still lacks a check at other sizes."""
        state = self._context.state
        if not self._context.config.evaluation.other_sizes:
            return []
        return [
            problem.id
            for problem in state.problems.values()
            if problem.id in self._problems
            and problem.id not in state.refused
            and not state.is_pruned(problem.id)
            and problem.best is not None
            and state.variants[problem.best].at_sizes is None
        ]

    @property
    def reserve_s(self) -> float:
        """Expected duration of the pending checks, in seconds."""
        return max(self._seconds, default=CHECK_GUESS_S) * len(self.owed())

    async def check(self, problem: str) -> None:
        """Judge the problem's best kernel at other sizes and record the results. Raises SessionError."""
        context, began = self._context, time.monotonic()
        best = context.state.problems[problem].best
        if best is None:
            return
        variant = context.state.variants[best]
        spec, source = context.state.problems[problem].spec, context.sources.text(variant.source)
        try:
            places = await other_sizes(spec)
        except NoOtherSizes as error:
            event = SizesChecked(problem=problem, variant=best, note=f"no other sizes: {error}")
        else:
            judged = judge_at_sizes(context.evaluator, places, variant.language, source)
            results = tuple([short async for short, _ in judged])
            event = SizesChecked(problem=problem, variant=best, results=results, seconds=time.monotonic() - began)
        self._seconds.append(time.monotonic() - began)
        await context.journal.record(event)
