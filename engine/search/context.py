"""What the parts of one running search share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine import clock
from engine.budget import Budget, budget_of, elapsed_s
from engine.config import Config
from engine.devices import usable_cores
from engine.events import DeviceFact, LogLine, StopReason
from engine.problem.spec import ProblemSpec
from engine.proposers.protocol import Demands, Proposer, Role, Task
from engine.search.assigning import earned_weights
from engine.search.ids import Ids
from engine.search.journal import Journal
from engine.search.sources import Sources
from engine.search.telling import task_of
from engine.session import SessionPaths
from engine.state import ProblemState, SessionState
from engine.workers.protocol import Evaluator


def demands_of(config: Config, problem: ProblemSpec) -> Demands:
    """What the judge of a run with ``config`` asks of kernels for ``problem``."""
    evaluation = config.evaluation
    tolerances = {evaluation.tolerance_for(tensor.dtype) for tensor in problem.outputs}
    threads = evaluation.threads or usable_cores()
    return Demands(max(tolerances, default=1e-2), evaluation.precision == "fp32", threads)


@dataclass
class Context:
    """One search. ``device`` is the one that kernels are written for; ``ending`` is why no new work is started.

    ``until_idle``: end once all that is left is to wait for a person's replies. ``spent``: why nobody can be
    asked any more, by a limit unless ``helpless``; ``silenced``: models that are not asked any more;
    ``refused``: those of them that it is of no use to ask, and why; ``closed``: problems whose own limit is reached,
    and what it says; ``unopened``: problems whose judge was killed while it opened them, and how.
    """

    config: Config
    paths: SessionPaths
    state: SessionState
    journal: Journal
    evaluator: Evaluator
    proposers: Sequence[tuple[Proposer, float]]
    sources: Sources
    ids: Ids
    device: DeviceFact
    ending: StopReason | None = None
    last_rounds: bool = False
    until_idle: bool = False
    spent: str | None = None
    helpless: bool = False
    silenced: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)
    unopened: dict[str, str] = field(default_factory=dict)
    _refusals: dict[tuple[str, str], str | None] = field(default_factory=dict)

    @property
    def paused(self) -> bool:
        return self.state.paused

    @property
    def budget(self) -> Budget:
        return budget_of(self.state, self.config.budget.minutes, self.config.search.rounds)

    def left_s(self, reserve_s: float = 0.0) -> float:
        """Seconds of the budget's minutes that are left."""
        return self.budget.left_s(elapsed_s(self.state, clock.now()), reserve_s)

    @property
    def width(self) -> int:
        """Evaluations in flight: as many as there are builders, and one that is being timed."""
        return (self.config.evaluation.builders or max(1, (os.cpu_count() or 2) // 2)) + 1

    def proposer(self, name: str) -> Proposer | None:
        return next((proposer for proposer, _ in self.proposers if proposer.name == name), None)

    def weight(self, proposer: Proposer) -> float:
        return next(weight for one, weight in self.proposers if one is proposer)

    def demands(self, problem: ProblemSpec) -> Demands:
        """What the judge asks of kernels for ``problem``."""
        return demands_of(self.config, problem)

    def task(self, problem: ProblemState) -> Task:
        return task_of(self.state, problem, self.device, self.demands(problem.spec))

    def refusal(self, problem: str, proposer: Proposer) -> str | None:
        """Why ``proposer`` has nothing for the problem, or None; asked once."""
        key = (problem, proposer.name)
        if key not in self._refusals:
            self._refusals[key] = proposer.refusal(self.task(self.state.problems[problem]))
        return self._refusals[key]

    def proposers_for(self, problem: str, role: Role | None = None) -> list[Proposer]:
        """Those that can write for ``problem`` (in ``role``) and may be asked."""
        return [
            proposer
            for proposer, _ in self.proposers
            if self.refusal(problem, proposer) is None
            and proposer.name not in self.silenced
            and (role is None or role in proposer.roles)
        ]

    def weights(self, role: Role, names: Sequence[str]) -> list[float]:
        """How questions of ``role`` are shared out among ``names``."""
        weights = [weight for name in names for proposer, weight in self.proposers if proposer.name == name]
        if self.config.search.allocation == "adaptive" and len(names) > 1:
            return earned_weights(self.state, role, names, weights)
        return weights

    async def forbid(self, why: str, proposer: Proposer | None, *, lasting: bool = False) -> None:
        """Nobody (or not ``proposer``) may be asked any more. Without anyone to ask, the search ends in order.

        ``lasting``: because asking is of no use, not because a limit forbids it.
        """
        if self.spent is not None or (proposer is not None and proposer.name in self.silenced):
            return
        if proposer is not None:
            self.silenced.add(proposer.name)
            if lasting:
                self.refused[proposer.name] = why
        if proposer is None or not self._anyone_left():
            self.spent = why
            self.helpless = lasting
        others = "; the search goes on without it" if lasting and self.spent is None else ""
        await self.journal.record(LogLine(level="error" if lasting else "warning", text=f"{why}{others}"))

    async def close(self, problem: str, why: str) -> None:
        """Nobody may be asked about ``problem`` any more; the others go on."""
        if problem not in self.closed:
            self.closed[problem] = why
            await self.journal.record(LogLine(level="warning", text=f"{problem}: {why}"))

    def spent_on(self, problem: str) -> bool:
        """Whether nobody can be asked about ``problem`` any more."""
        return self.spent is not None or problem in self.closed

    def _anyone_left(self) -> bool:
        """Whether somebody can still have ideas and write kernels for them."""
        left = [proposer for proposer, _ in self.proposers if proposer.name not in self.silenced]
        coders = [proposer for proposer in left if "code" in proposer.roles and proposer.reads_prose]
        return any("ideas" in proposer.roles and (coders or not proposer.reads_prose) for proposer in left)

    def allow(self) -> None:
        """The limits changed: who was forbidden to ask may try again."""
        self.spent, self.helpless = None, False
        self.silenced.clear()
        self.refused.clear()
        self.closed.clear()
