"""Request ideas, kernels and repairs from proposers, and convert the answers to events."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from engine.proposers.protocol import CALL, NUMBER, UNUSABLE, IdeaDraft, NoAnswer, Proposer, Spent, VariantDraft
from engine.search.context import Context
from engine.search.ids import seed_for
from engine.search.proposing.novelty import repeated
from engine.search.proposing.proposer_context import PATIENCE, board_of, draft_of, kernel_of
from engine.search.proposing.untried import named
from engine.session.records.events import (
    AnswerMissing,
    IdeaProposed,
    IdeaWaiting,
    LogLine,
    SourceRepeated,
    VariantWritten,
)
from engine.session.records.model_calls import Purpose
from engine.session.state.session_state import IdeaState, ProblemState, VariantState


class Questions:
    """Send requests about one problem to proposers, and record their errors instead of raising them."""

    def __init__(self, context: Context, problem: str) -> None:
        self._context = context
        self._state = context.state
        self._id = problem

    @property
    def _problem(self) -> ProblemState:
        return self._state.problems[self._id]

    async def ideas(self, round_number: int, proposer: Proposer, parent: str | None, count: int) -> bool:
        """Request ideas and record the new ones. Returns False if a limit forbids the request. Raises SessionError."""
        context, state = self._context, self._state
        seed = seed_for(state.seed, self._id, round_number, parent, proposer.name)
        kernel = kernel_of(state, state.variants[parent], context.sources) if parent is not None else None
        board = board_of(state, self._problem, round_number, parent, context.sources, context.remembered)
        try:
            drafts = await proposer.ideas(context.task(self._problem), kernel, board, count, seed)
        except Exception as error:
            return await self._nothing(proposer, round_number, "ideas", parent or "", error)
        for draft in drafts:
            if (why := self._repeats(draft, parent, proposer)) is not None:
                await self._say(
                    f"{self._id}: the search rejected an idea of {proposer.name}, because {why}: {draft.text[:200]}"
                )
                continue
            await context.journal.record(
                IdeaProposed(
                    idea=context.ids.idea(),
                    problem=self._id,
                    round=round_number,
                    parent=parent,
                    category=draft.category,
                    text=draft.text,
                    proposer=proposer.name,
                    data=draft.data,
                )
            )
        return True

    async def kernels(self, round_number: int, idea: IdeaState, shares: Mapping[str, Sequence[int]]) -> bool:
        """Request an idea's kernels from the proposers in ``shares``, in parallel. Returns False if a limit forbids a
        request.
        """
        proposers = [(self._context.proposer(name), numbers) for name, numbers in shares.items()]
        asked = [self._kernels(one, round_number, idea, numbers) for one, numbers in proposers if one is not None]
        return all(await asyncio.gather(*asked))

    async def _kernels(self, proposer: Proposer, round_number: int, idea: IdeaState, numbers: Sequence[int]) -> bool:
        context, state = self._context, self._state
        parent = state.variants.get(idea.parent) if idea.parent is not None else None
        known = kernel_of(state, parent, context.sources) if parent is not None and parent.verdict is not None else None
        board = board_of(state, self._problem, round_number, idea.parent, context.sources)
        seed = seed_for(state.seed, self._id, idea.id)
        found: list[VariantWritten] = []
        try:
            async for draft in proposer.variants(
                context.task(self._problem), draft_of(idea), known, board, numbers, seed
            ):
                written = self._written(idea, draft, proposer, round_number, idea.parent, draft.note)
                if isinstance(written, VariantWritten):
                    found.append(written)
                if written is not None and proposer.reads_prose:  # Judge it while the model writes the other kernels.
                    await context.journal.record(written)
        except Exception as error:
            return await self._nothing(proposer, round_number, "kernel", idea.id, error)
        if not proposer.reads_prose:
            await context.journal.record_all(found)
        if not found:
            nothing = f"{named(proposer)} has no untried kernel for this idea"
            await self._say(f"{idea.id}: {nothing}")
            if not proposer.reads_prose and not idea.variants:
                await context.journal.record(IdeaWaiting(idea=idea.id, reason=nothing))
        return True

    async def fix(self, round_number: int, proposer: Proposer, failed: VariantState, turn: int) -> bool:
        """Request the repair of a kernel. Returns False if a limit forbids the request."""
        context, state = self._context, self._state
        idea = state.ideas[failed.idea]
        try:
            draft = await proposer.fix(
                context.task(self._problem),
                draft_of(idea),
                kernel_of(state, failed, context.sources),
                board_of(state, self._problem, round_number, failed.id, context.sources),
                turn,
                seed_for(state.seed, self._id, "fix", failed.id),
            )
        except Exception as error:
            return await self._nothing(proposer, round_number, "fix", failed.id, error)
        note = f"fix {turn} of {failed.id}"
        if draft is not None and (event := self._written(idea, draft, proposer, round_number, failed.id, note)):
            await context.journal.record(event)
        return True

    def missing(self, purpose: Purpose, subject: str) -> int:
        """Return the number of rounds in which a proposer failed to answer a request."""
        return len(self._problem.missing.get((purpose, subject), ()))

    # Answers

    def _repeats(self, draft: IdeaDraft, parent: str | None, proposer: Proposer) -> str | None:
        """Return why an idea repeats an earlier idea for this parent or its ancestors. Return None for a new idea."""
        board = board_of(self._state, self._problem, 0, parent, self._context.sources)
        lineage = set(self._state.lineage(parent)) if parent is not None else set()
        same = [idea for idea in board.tried if idea.parent == parent or idea.idea in lineage]
        call = draft.data.get(CALL)
        for idea in same:
            if idea.text == draft.text and idea.parent == parent:
                return (
                    f"it equals idea {idea.idea}"
                    if call is None or idea.data.get(CALL) != call
                    else "it is already recorded"
                )
        found = repeated(draft.text, same, draft.data) if proposer.reads_prose else None
        return f"it repeats idea {found.idea} ({found.why})" if found is not None else None

    def _written(
        self, idea: IdeaState, draft: VariantDraft, proposer: Proposer, round_number: int, parent: str | None, note: str
    ) -> VariantWritten | SourceRepeated | None:
        """Create the event for a draft: a new variant or a repeated source. Returns None if the draft is already
        recorded.
        """
        call = draft.data.get(CALL)
        recorded = [self._state.variants[one].data.get(CALL) for one in idea.variants]
        if call is not None and call in (*recorded, *(one.call for one in idea.repeats)):
            return None
        if draft.unusable:  # Two unusable replies may begin with the same text.
            variant, digest = self._context.ids.variant(), self._context.journal.put_blob(draft.source)
        else:
            variant, digest, is_new = self._context.sources.claim(self._id, draft.source, self._context.ids.variant)
            if not is_new:
                return SourceRepeated(
                    problem=self._id,
                    idea=idea.id,
                    round=round_number,
                    same_as=variant,
                    proposer=proposer.name,
                    parent=parent,
                    call=call or "",
                    number=draft.data.get(NUMBER),
                )
        return VariantWritten(
            variant=variant,
            idea=idea.id,
            problem=self._id,
            round=round_number,
            parent=parent,
            language=draft.language,
            source=digest,
            proposer=proposer.name,
            note=note,
            data=draft.data if not draft.unusable else {**draft.data, UNUSABLE: draft.unusable},
        )

    async def _nothing(
        self, proposer: Proposer, round_number: int, purpose: Purpose, subject: str, error: Exception
    ) -> bool:
        """Record that a proposer did not answer, and log whether the search will ask again. Returns False if a limit
        forbade the request.
        """
        if isinstance(error, Spent):
            if error.scope == "problem":
                await self._context.close(self._id, str(error))
            else:
                await self._context.forbid(str(error), proposer if error.scope == "model" else None)
            return False
        if isinstance(error, NoAnswer) and error.lasting:
            await self._context.forbid(f"the search no longer calls {proposer.name}: {error}", proposer, lasting=True)
            return False
        if self._state.is_pruned(subject or self._id):
            return True
        reason = str(error) if isinstance(error, NoAnswer) else f"{type(error).__name__}: {error}"
        call = error.call if isinstance(error, NoAnswer) else ""
        what = {
            "ideas": f"no ideas for {subject}" if subject else "no first ideas",
            "kernel": f"too few kernels for {subject}",
            "fix": f"no repair of {subject}",
        }[purpose]
        times = self.missing(purpose, subject) + 1
        if times >= PATIENCE:
            then = "the search gives up on this request"
        elif round_number >= self._context.budget.rounds:
            then = "the last round is over, so the search does not ask again"
        else:
            then = "the search asks again in the next round"
        await self._context.journal.record(
            AnswerMissing(
                problem=self._id,
                round=round_number,
                purpose=purpose,
                subject=subject,
                proposer=proposer.name,
                reason=reason,
                call=call,
            ),
            LogLine(level="warning", text=f"{self._id}: {proposer.name} returned {what}: {reason}; {then}"),
        )
        return True

    async def _say(self, text: str) -> None:
        await self._context.journal.record(LogLine(level="info", text=text))
