"""The rounds of one problem: look at the state, start what is missing, wait, look again.

Nothing here remembers how far the search got: ideas without kernels get kernels, parents without ideas get ideas, and
only when nothing is owed any more is the round closed. That makes resuming, and a person's seeds, ordinary cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from engine.events import (
    Carried,
    HeatFinished,
    IdeaProposed,
    LogLine,
    ProblemFinished,
    RoundFinished,
    RoundStarted,
    VariantStage,
    VariantWritten,
)
from engine.problem.spec import Form
from engine.proposers.protocol import Proposer, VariantDraft
from engine.search.context import Context
from engine.search.ids import seed_for
from engine.search.telling import (
    BY_HAND,
    SEEDED,
    board_of,
    candidates_of,
    draft_of,
    kernel_of,
    own_ideas,
    parents_of,
    share_out,
)
from engine.selection import STRATEGIES, Selection
from engine.state import IdeaState, ProblemState, RoundState, VariantState
from engine.workers.protocol import EvaluationError

FIXABLE = frozenset({"build_error", "wrong", "out_of_bounds", "crashed", "timeout", "memory"})

HEAT_REACH = 0.8
"""Share of the best factor that a kernel must have reached to run in a heat."""


class ProblemSearch:
    """Runs the rounds of one problem until its rounds are used up, no proposer has anything new, or it is told to end.

    ``run`` may be called again after it returned: for more rounds, or for what a person seeded meanwhile.
    """

    def __init__(self, context: Context, problem: str) -> None:
        self.context = context
        self.id = problem
        self._state = context.state
        self._changed = asyncio.Event()
        self._jobs: dict[tuple[str, ...], asyncio.Task[None]] = {}
        self._done: set[tuple[str, ...]] = set()
        self._failure: BaseException | None = None

    @property
    def problem(self) -> ProblemState:
        return self._state.problems[self.id]

    @property
    def at_rest(self) -> bool:
        """Whether no round is open and none will be opened as things stand."""
        return self._open_round() is None and (self.problem.finished is not None or self.context.last_rounds)

    @property
    def heating(self) -> bool:
        """Whether its leaders are being timed side by side."""
        return any(kind == "heat" for kind, *_ in self._jobs)

    def wake(self) -> None:
        """Something about this problem changed: look again."""
        self._changed.set()

    async def run(self) -> None:
        """Raises SessionError when the session cannot be written any more."""
        try:
            while not self.context.ending:
                self._changed.clear()
                if self._state.is_pruned(self.id):
                    return
                if self._failure is not None:
                    raise self._failure
                if self._work() or await self._advance():
                    await self._changed.wait()
                elif self.at_rest:
                    return
        finally:
            for job in self._jobs.values():
                job.cancel()
            await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    # Looking

    def _work(self) -> bool:
        """Start what is missing; whether anything is under way."""
        round_ = self._open_round()
        if not self.context.paused:
            if round_ is not None:
                self._start_ideas(round_)
            for idea in [self._state.ideas[name] for one in self.problem.rounds for name in one.ideas]:
                if (round_ is not None and idea.round == round_.number) or idea.data.get(SEEDED):
                    self._start_variants(idea)
            for variant in list(self._state.variants_of(self.id)):
                if round_ is not None and variant.round == round_.number:
                    self._start_fix(variant)
                    if variant.verdict is not None and variant.verdict.status == "error" and variant.judged == 1:
                        self._start(("again", variant.id), self._judge_again(variant))
        judged = any(variant.stage is not None for variant in self._state.variants_of(self.id))
        return bool(self._jobs) or judged

    async def _advance(self) -> bool:
        """Nothing is under way: heat, close or open a round, or finish. Whether there is something to wait for."""
        if self.context.paused:
            return True
        round_ = self._open_round()
        if round_ is not None:
            if self._wants_heat(round_):
                self._start(("heat", str(round_.number)), self._heat(round_))
                return True
            await self._close(round_)
        elif self.context.last_rounds:
            return False
        elif (reason := self._reason_to_finish()) is None:
            await self._open_next()
        elif self.problem.finished != reason:
            await self.context.journal.record(ProblemFinished(problem=self.id, reason=reason))
        return False

    def _open_round(self) -> RoundState | None:
        rounds = self.problem.rounds
        return rounds[-1] if rounds and rounds[-1].finished_at is None else None

    def _reason_to_finish(self) -> str | None:
        """Why there is no further round, or None if there is one."""
        rounds = self.problem.rounds
        if not rounds:
            return None
        if rounds[-1].number >= self.context.budget.rounds:
            return f"all {rounds[-1].number} rounds are done"
        if not self._state.leaders(self.id):
            if not any(variant.round == rounds[-1].number for variant in self._state.variants_of(self.id)):
                return "no correct kernel was found, and no proposer has another first one"
            return None
        if not any(not one.exhausted for one in candidates_of(self._state, self.problem)):
            return "no proposer has anything new for any of the correct kernels"
        return None

    # Doing

    def _start(self, key: tuple[str, ...], job: Coroutine[Any, Any, None]) -> None:
        """Run a job once in this engine's life; its end wakes the loop, its error ends the search."""
        if key in self._jobs or key in self._done:
            job.close()
            return
        task = asyncio.ensure_future(job)
        self._jobs[key] = task

        def ended(done: asyncio.Task[None]) -> None:
            del self._jobs[key]
            self._done.add(key)
            if not done.cancelled() and (error := done.exception()) is not None:
                self._failure = self._failure or error
            self.wake()

        task.add_done_callback(ended)

    def _start_ideas(self, round_: RoundState) -> None:
        context = self.context
        proposers = context.proposers_for(self.id)
        have = {(idea.parent, idea.proposer) for idea in own_ideas(self._state, round_.ideas)}
        parents = parents_of(self._state, round_, context.config.search.survivors)
        wanted = share_out(context.config.search.ideas, parents, [context.weight(one) for one in proposers])
        for (parent, place), count in wanted.items():
            proposer = proposers[place]
            if (parent, proposer.name) not in have:
                key = ("ideas", str(round_.number), parent or "", proposer.name)
                self._start(key, self._ideas(round_, proposer, parent, count))

    def _start_variants(self, idea: IdeaState) -> None:
        if idea.variants or idea.waiting or idea.proposer == BY_HAND or self._state.is_pruned(idea.id):
            return
        if (proposer := self.context.proposer(idea.proposer)) is not None:
            self._start(("variants", idea.id), self._variants(proposer, idea))

    def _start_fix(self, variant: VariantState) -> None:
        if variant.verdict is None or variant.stage is not None or variant.verdict.status not in FIXABLE:
            return
        siblings = [self._state.variants[name] for name in self._state.ideas[variant.idea].variants]
        turn = 1 + _turns(variant, {one.id: one for one in siblings})
        if turn > self.context.config.search.fixes or any(one.parent == variant.id for one in siblings):
            return
        proposer = self.context.proposer(variant.proposer)
        if proposer is not None and not self._state.is_pruned(variant.id):
            self._start(("fix", variant.id), self._fix(proposer, variant, turn))

    async def _ideas(self, round_: RoundState, proposer: Proposer, parent: str | None, count: int) -> None:
        context, state = self.context, self._state
        seed = seed_for(state.seed, self.id, round_.number, parent, proposer.name)
        kernel = kernel_of(state, state.variants[parent], context.sources) if parent is not None else None
        board = board_of(state, self.problem, round_.number, parent, context.sources)
        try:
            drafts = await proposer.ideas(context.task(self.problem), kernel, board, count, seed)
        except Exception as error:
            await self._proposer_failed(proposer, "ideas", error)
            return
        known = {(idea.parent, idea.text) for idea in state.ideas.values() if idea.problem == self.id}
        await context.journal.record(
            *(
                IdeaProposed(
                    idea=context.ids.idea(),
                    problem=self.id,
                    round=round_.number,
                    parent=parent,
                    category=draft.category,
                    text=draft.text,
                    proposer=proposer.name,
                    data=draft.data,
                )
                for draft in drafts[:count]
                if (parent, draft.text) not in known
            )
        )

    async def _variants(self, proposer: Proposer, idea: IdeaState) -> None:
        context, state = self.context, self._state
        parent = state.variants.get(idea.parent) if idea.parent is not None else None
        known = kernel_of(state, parent, context.sources) if parent is not None and parent.verdict is not None else None
        board = board_of(state, self.problem, idea.round, idea.parent, context.sources)
        seed = seed_for(state.seed, self.id, idea.id)
        numbers = range(context.config.search.variants)
        drafts = []
        try:
            async for draft in proposer.variants(
                context.task(self.problem), draft_of(idea), known, board, numbers, seed
            ):
                drafts.append(draft)
        except Exception as error:
            await self._proposer_failed(proposer, f"kernels for {idea.id}", error)
            return
        events = [self._written(idea, draft, idea.parent, draft.note) for draft in drafts]
        fresh = [event for event in events if event is not None]
        await context.journal.record_all(fresh)
        if drafts and not fresh:
            await self._say(f"{idea.id}: every kernel that {proposer.name} wrote for it had been tried before")

    async def _fix(self, proposer: Proposer, failed: VariantState, turn: int) -> None:
        context, state = self.context, self._state
        idea = state.ideas[failed.idea]
        try:
            draft = await proposer.fix(
                context.task(self.problem),
                draft_of(idea),
                kernel_of(state, failed, context.sources),
                board_of(state, self.problem, idea.round, failed.id, context.sources),
                turn,
                seed_for(state.seed, self.id, "fix", failed.id),
            )
        except Exception as error:
            await self._proposer_failed(proposer, f"a fix of {failed.id}", error)
            return
        if draft is not None and (event := self._written(idea, draft, failed.id, f"fix {turn} of {failed.id}")):
            await context.journal.record(event)

    async def _judge_again(self, variant: VariantState) -> None:
        """An evaluation that failed says nothing about the kernel: it gets one more."""
        await self.context.journal.record(VariantStage(variant=variant.id, stage="queued"))

    def _written(self, idea: IdeaState, draft: VariantDraft, parent: str | None, note: str) -> VariantWritten | None:
        """The event for a draft, or None where the same source exists already for this problem."""
        digest = self.context.sources.claim(self.id, draft.source)
        if digest is None:
            return None
        return VariantWritten(
            variant=self.context.ids.variant(),
            idea=idea.id,
            problem=self.id,
            round=idea.round,
            parent=parent,
            form=draft.form,
            source=digest,
            proposer=idea.proposer,
            note=note,
            data=draft.data,
        )

    # Closing and opening

    def _wants_heat(self, round_: RoundState) -> bool:
        """A heat is owed when the leaders are not those that were timed side by side already."""
        leaders = self._heat_leaders()
        timed = {standing.variant for standing in self.problem.standings}
        owed = len(leaders) >= 2 and {leader.id for leader in leaders} != timed
        return owed and ("heat", str(round_.number)) not in self._done

    def _heat_leaders(self) -> list[VariantState]:
        """The fastest, without those that stand too far behind for a heat to change the order.

        The one with the least milliseconds is always among them: a factor also depends on how the reference fared.
        """
        correct = self._state.leaders(self.id)
        leaders = correct[: self.context.config.search.heat]
        best = leaders[0].speedup or 0.0 if leaders else 0.0
        near = [leader for leader in leaders if (leader.speedup or 0.0) >= HEAT_REACH * best]
        quickest = min(correct, key=lambda variant: variant.kernel_ms or float("inf"), default=None)
        return near if quickest is None or quickest in near else [*near, quickest]

    async def _heat(self, round_: RoundState) -> None:
        kernels: dict[str, tuple[Form, str]] = {
            leader.id: (leader.form, self.context.sources.text(leader.source)) for leader in self._heat_leaders()
        }
        try:
            standings = await self.context.evaluator.heat(self.problem.spec, kernels)
        except EvaluationError as error:
            await self._say(f"{round_.id}: no heat of the leaders: {error}")
            return
        await self.context.journal.record(HeatFinished(problem=self.id, round=round_.number, standings=standings))

    async def _close(self, round_: RoundState) -> None:
        selection = self._select(round_.number)
        concerned = {one.variant for one in round_.parents}
        concerned |= {variant.id for variant in self._state.variants_of(self.id) if variant.round == round_.number}
        failed = tuple(
            Carried(variant.id, _why_failed(variant))
            for variant in self._state.variants_of(self.id)
            if variant.id in concerned and (not variant.correct or self._state.is_pruned(variant.id))
        )
        pruned = {variant.variant for variant in failed}
        await self.context.journal.record(
            RoundFinished(
                problem=self.id,
                round=round_.number,
                survivors=selection.survivors,
                dropped=tuple(
                    one for one in selection.dropped if one.variant in concerned and one.variant not in pruned
                )
                + failed,
            )
        )

    async def _open_next(self) -> None:
        """The parents are chosen from the state of now: a person may have pruned, pinned or seeded since."""
        rounds = self.problem.rounds
        number = rounds[-1].number + 1 if rounds else 0
        parents = self._select(number - 1).survivors if rounds else ()
        await self.context.journal.record(RoundStarted(problem=self.id, round=number, parents=parents))

    def _select(self, round_number: int) -> Selection:
        search = self.context.config.search
        candidates = candidates_of(self._state, self.problem)
        seed = seed_for(self._state.seed, self.id, "selection", round_number)
        return STRATEGIES[search.strategy](candidates, round_number=round_number, width=search.survivors, seed=seed)

    async def _proposer_failed(self, proposer: Proposer, what: str, error: Exception) -> None:
        text = f"{self.id}: {proposer.name} gave no {what}: {type(error).__name__}: {error}"
        await self.context.journal.record(LogLine(level="error", text=text))

    async def _say(self, text: str) -> None:
        await self.context.journal.record(LogLine(level="info", text=text))


def _turns(variant: VariantState, siblings: dict[str, VariantState]) -> int:
    """How many fix turns led to ``variant``: its ancestors among the kernels of its own idea."""
    turns = 0
    while variant.parent in siblings and variant.parent != variant.id:
        variant, turns = siblings[variant.parent], turns + 1
    return turns


def _why_failed(variant: VariantState) -> str:
    if variant.verdict is None or variant.verdict.status in ("correct", "cancelled"):
        return "pruned by hand"
    reason = variant.verdict.reason.strip().splitlines()
    status = variant.verdict.status.replace("_", " ")
    return f"{status}: {reason[0]}" if reason else status
