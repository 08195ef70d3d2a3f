"""The context of a running search: data that all its parts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.config.evaluation_table import EvaluationConfig
from engine.config.roles import Role
from engine.config.schema import Config
from engine.devices.fact import DeviceFact
from engine.devices.hardware import usable_cores
from engine.evaluation.evaluator import Evaluator
from engine.problem.spec import ProblemSpec
from engine.proposers.coverage import why_nobody
from engine.proposers.protocol import Demands, Proposer, Task
from engine.search.ids import Ids
from engine.search.kernel_sources import Sources
from engine.search.proposing.model_choice import earned_weights
from engine.search.proposing.proposer_context import task_of
from engine.session.budget import Budget, budget_of, elapsed_s
from engine.session.journal import Journal
from engine.session.records.events import LogLine, StopReason
from engine.session.state.session_state import ProblemState, SessionState
from engine.session.store import SessionPaths
from engine.session.worked_ideas import WorkedIdea
from engine.system import clock


def demands_of(evaluation: EvaluationConfig, problem: ProblemSpec) -> Demands:
    """Return the judge's requirements for kernels of ``problem`` under the config's ``evaluation`` table."""
    tolerances = {evaluation.tolerance_for(one.dtype) for one in problem.outputs if "float" in one.dtype}
    threads = evaluation.threads or usable_cores()
    tightest = min(tolerances, default=evaluation.tolerance_for("float32"))  # Integers must match exactly.
    return Demands(tightest, evaluation.precision == "fp32", threads)


@dataclass
class Context:
    """The context that all parts of a search share.

    ``device`` is the device that runs the kernels. ``ending`` is the reason why the search no longer starts new work.
    ``until_idle``: whether the search ends when it is waiting only for a person's replies. ``unattended``: whether the
    search ends when only a person could add kernels. ``spent`` is the reason why the search may not call any proposer:
    a limit or, if ``helpless``, failures of all models. ``silenced`` names models that the search no longer calls.
    ``refused`` maps permanently failed models to the reasons. ``closed`` maps problems to the spending limit that they
    reached. ``unopened`` maps unopened problems to the judge's error. ``closing`` names problems whose turn is ending;
    the search no longer queues their kernels. ``awaiting_replies`` names problems whose turn has no time for another
    reply. The search does not start model calls for these problems, but waits for calls in flight and for verdicts.
    ``no_counters``: whether ``ncu`` failed to read hardware counters on this machine. ``remembered``: ideas that worked
    in the sessions of ``warm_start``.
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
    until_idle: bool = False
    unattended: bool = False
    spent: str | None = None
    helpless: bool = False
    silenced: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)
    unopened: dict[str, str] = field(default_factory=dict)
    closing: set[str] = field(default_factory=set)
    awaiting_replies: set[str] = field(default_factory=set)
    no_counters: bool = False
    remembered: tuple[WorkedIdea, ...] = ()
    _refusals: dict[tuple[str, str], str | None] = field(default_factory=dict)

    @property
    def last_rounds(self) -> bool:
        """Whether the search stops after the running rounds, because a person planned this stop."""
        return self.state.stop_planned

    @property
    def takes_turns(self) -> bool:
        """Whether the search opens one problem at a time, each for its own minutes."""
        return self.config.budget.minutes_per_problem is not None

    @property
    def leaves_compile(self) -> bool:
        """Whether the search leaves missing ``torch.compile`` baselines to a resume, because they would delay its end.
        With turns, it measures them in each problem's turn, because a resume does not continue a turn that has ended.
        """
        return self.last_rounds and not self.takes_turns

    def lacks_compile(self, problem: str) -> bool:
        """Return whether a problem needs a ``torch.compile`` baseline and has none. With turns, only a problem with a
        correct kernel needs this baseline.
        """
        needs = self.config.evaluation.torch_compile
        needs = needs and (self.state.problems[problem].best is not None or not self.takes_turns)
        return needs and self.state.lacks_compile(problem)

    @property
    def paused(self) -> bool:
        return self.state.paused

    @property
    def budget(self) -> Budget:
        return budget_of(self.state, self.config.budget.minutes, self.config.search.rounds)

    def left_s(self, reserve_s: float = 0.0) -> float:
        """Seconds left in the time budget."""
        return self.budget.left_s(elapsed_s(self.state, clock.now()), reserve_s)

    @property
    def ends_without_person(self) -> bool:
        """Whether the search ends, instead of waiting, if only a person could continue it."""
        return self.until_idle or self.unattended

    def proposer(self, name: str) -> Proposer | None:
        return next((proposer for proposer, _ in self.proposers if proposer.name == name), None)

    def weight(self, proposer: Proposer) -> float:
        return next(weight for one, weight in self.proposers if one is proposer)

    def demands(self, problem: ProblemSpec) -> Demands:
        """The judge's requirements for kernels of ``problem``."""
        return demands_of(self.config.evaluation, problem)

    def task(self, problem: ProblemState) -> Task:
        return task_of(self.state, problem, self.device, self.demands(problem.spec))

    def refusal(self, problem: str, proposer: Proposer) -> str | None:
        """Return why ``proposer`` does not support the problem. Return None if it does. Cached."""
        key = (problem, proposer.name)
        if key not in self._refusals:
            self._refusals[key] = proposer.refusal(self.task(self.state.problems[problem]))
        return self._refusals[key]

    def why_nobody_writes(self, problem: str) -> str | None:
        """Return why no proposer can write kernels for the problem. Return None if a proposer supports the problem."""
        refusals = [self.refusal(problem, proposer) for proposer, _ in self.proposers]
        return why_nobody(self.state.problems[problem].spec.c_refusal, refusals)

    def proposers_for(self, problem: str, role: Role | None = None) -> list[Proposer]:
        """Return the proposers that support ``problem`` and that the search may call. ``role``: a required role."""
        return [
            proposer
            for proposer, _ in self.proposers
            if self.refusal(problem, proposer) is None
            and proposer.name not in self.silenced
            and (role is None or role in proposer.roles)
        ]

    def idea_proposers(self, problem: str) -> list[Proposer]:
        """Return the proposers to ask for ideas about ``problem``, except models whose ideas no model may implement."""
        coders = [one for one in self.proposers_for(problem, "code") if one.reads_prose]
        return [one for one in self.proposers_for(problem, "ideas") if coders or not one.reads_prose]

    def weights(self, role: Role, names: Sequence[str]) -> list[float]:
        """Return the weights of the proposers ``names``, which determine their shares of requests for ``role``."""
        weights = [weight for name in names for proposer, weight in self.proposers if proposer.name == name]
        if self.config.search.allocation == "adaptive" and len(names) > 1:
            return earned_weights(self.state, role, names, weights)
        return weights

    async def forbid(self, why: str, proposer: Proposer | None, *, lasting: bool = False) -> None:
        """Stop calling ``proposer`` (None: all proposers). If no proposer remains, the search ends.

        ``lasting``: whether the reason is failed calls rather than a limit.
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
        others = "; the search continues without it" if lasting and self.spent is None else ""
        await self.journal.record(LogLine(level="error" if lasting else "warning", text=f"{why}{others}"))

    async def close(self, problem: str, why: str) -> None:
        """Stop calling proposers for ``problem``. Other problems continue."""
        if problem not in self.closed:
            self.closed[problem] = why
            await self.journal.record(LogLine(level="warning", text=f"{problem}: {why}"))

    def spent_on(self, problem: str) -> bool:
        """Return whether the search may no longer call proposers for ``problem``."""
        return self.spent is not None or problem in self.closed or problem in self.awaiting_replies

    def _anyone_left(self) -> bool:
        """Return whether the remaining proposers can both suggest ideas and implement them."""
        left = [proposer for proposer, _ in self.proposers if proposer.name not in self.silenced]
        coders = [proposer for proposer in left if "code" in proposer.roles and proposer.reads_prose]
        return any("ideas" in proposer.roles and (coders or not proposer.reads_prose) for proposer in left)

    def allow(self) -> None:
        """Allow calls again after a person changed the limits."""
        self.spent, self.helpless = None, False
        self.silenced.clear()
        self.refused.clear()
        self.closed.clear()
