"""At the end of a search: is each problem's winner right, and still a win, at other sizes than the searched ones?"""

from __future__ import annotations

import time

from engine.evaluation.at_sizes import judge_at_sizes
from engine.events import SizesChecked
from engine.problem.resize import NoOtherSizes, other_sizes
from engine.search.context import Context

CHECK_GUESS_S = 10.0
"""What the check of one winner is expected to take until one was made."""


class FinalCheck:
    """Knows whose winner is still to be checked, and checks it. One that beats it later is to be checked in turn."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._seconds: list[float] = []

    def owed(self) -> list[str]:
        """Problems whose best kernel has not been judged at other sizes."""
        state = self._context.state
        if not self._context.config.evaluation.other_sizes:
            return []
        return [
            problem.id
            for problem in state.problems.values()
            if problem.id not in state.refused
            and not state.is_pruned(problem.id)
            and problem.best is not None
            and state.variants[problem.best].at_sizes is None
        ]

    @property
    def reserve_s(self) -> float:
        """Seconds that what is owed will take."""
        return max(self._seconds, default=CHECK_GUESS_S) * len(self.owed())

    async def check(self, problem: str) -> None:
        """Judge the problem's best kernel at other sizes and record what came out. Raises SessionError."""
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
            judged = judge_at_sizes(context.evaluator, places, variant.form, source)
            event = SizesChecked(problem=problem, variant=best, results=tuple([short async for short, _ in judged]))
        self._seconds.append(time.monotonic() - began)
        await context.journal.record(event)
