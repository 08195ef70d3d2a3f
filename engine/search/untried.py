"""What proposers that write by themselves, in no time, have left: for a kernel, and for a move that a person seeds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from engine.nodes import MOVE
from engine.proposers.protocol import Board, IdeaDraft, Kernel, Proposer, Task, VariantDraft
from engine.search.context import Context
from engine.search.ids import seed_for
from engine.search.telling import Texts, board_of, kernel_of
from engine.state import ProblemState, SessionState

_NAMED = 3
"""Other moves that an answer names, at most."""
_LOOKED_AT = 8
"""Other moves, and other kernels for the same one, that are looked at for that, at most."""


async def why_nothing_new(
    context: Context, proposer: Proposer, problem: ProblemState, parent: str | None, move: str
) -> str | None:
    """Why ``proposer`` would write no kernel for ``move`` on the kernel ``parent``, with what is untried; None where
    it would. Only proposers that write by themselves, in no time, can be asked this way. Raises SessionError."""
    look = Untried(
        context.state,
        context.sources,
        proposer,
        context.task(problem),
        parent,
        variants=context.config.search.variants,
        next_idea=context.ids.next_idea,
    )
    if await look.has_new(move, parent):
        return None
    where = parent or "the reference"
    if await look.applies(move, parent):
        said = f"every kernel that {proposer.name} can write for {move} on {where} has been tried or is queued"
    else:
        writer = context.state.variants[parent].proposer if parent is not None else proposer.name
        because = (
            f"{proposer.name} did not write it" if writer != proposer.name else "it has that already, or no use for it"
        )
        said = f"{move} cannot be made on {where}: {because}"
    other_moves, other_kernel = await look.moves(parent, move), await look.kernel_for(move, parent)
    instead = [f"untried on {where}: {', '.join(other_moves)}"] if other_moves else []
    instead += [f"{move} is untried on {other_kernel}"] if other_kernel is not None else []
    return f"{said}; {'; '.join(instead) or f'no move of {proposer.name} is untried on {where}'}"


async def nothing_left(context: Context, problem: ProblemState, kernel: str) -> bool:
    """Whether no proposer has an idea for ``kernel``: all were tried, or it is written in a way that none of them can
    change. One that reads prose, or only repeats a record, may have one: False. Raises SessionError."""
    proposers = context.proposers_for(problem.id, "ideas")
    task = context.task(problem)
    if not proposers or any(one.reads_prose or not one.catalogue(task) for one in proposers):
        return False
    found, number = context.state.variants[kernel], problem.rounds[-1].number
    known = kernel_of(context.state, found, context.sources)
    board = board_of(context.state, problem, number, kernel, context.sources)
    for proposer in proposers:
        seed = seed_for(context.state.seed, problem.id, number + 1, kernel, proposer.name)
        try:
            if await proposer.ideas(task, known, board, 1, seed):
                return False
        except Exception:  # whatever it raises counts as no answer now, and it is asked in the round
            return False
    return True


class Known(Texts, Protocol):
    """The sources of a search: the engine's :class:`~engine.search.sources.Sources`, or what a monitor reads."""

    def has(self, problem: str, text: str) -> bool:
        """Whether it is a source of ``problem`` already, judged or not."""
        ...


class Untried:
    """What is new for the kernel ``parent`` (None: the reference) of a problem that has a round. ``variants``: kernels
    per idea; ``next_idea``: the id that the next idea gets. Raises SessionError where a source cannot be read."""

    def __init__(
        self,
        state: SessionState,
        sources: Known,
        proposer: Proposer,
        task: Task,
        parent: str | None,
        *,
        variants: int,
        next_idea: str,
    ) -> None:
        self._state, self._sources, self._proposer, self._task = state, sources, proposer, task
        problem = state.problems[task.problem.id]
        self._problem = problem.id
        self._board = board_of(state, problem, problem.rounds[-1].number, parent, sources)
        self._numbers = range(variants)
        self._seed = seed_for(state.seed, problem.id, next_idea)

    async def has_new(self, move: str, parent: str | None) -> bool:
        """Whether the next idea, of this move, would come to a source that the problem does not have."""
        async for one in self._variants(move, parent, self._board, self._numbers):
            if not self._sources.has(self._problem, one.source):
                return True
        return False

    async def applies(self, move: str, parent: str | None) -> bool:
        """Whether there would be a kernel for it if none had been tried."""
        async for _ in self._variants(move, parent, Board(), range(1)):
            return True
        return False

    async def moves(self, parent: str | None, but: str) -> list[str]:
        """Names of other moves that have something new for ``parent``, the most promising first."""
        known = {entry.name for entry in self._proposer.catalogue(self._task)} - {but}
        drafts = await self._proposer.ideas(self._task, self._kernel(parent), self._board, len(known), self._seed)
        names = [name for draft in drafts if (name := str(draft.data.get(MOVE, ""))) in known][:_LOOKED_AT]
        return [name for name in names if await self.has_new(name, parent)][:_NAMED]

    async def kernel_for(self, move: str, but: str | None) -> str | None:
        """The fastest other kernel on which ``move`` is untried."""
        others = [one.id for one in self._state.leaders(self._problem, _LOOKED_AT) if one.id != but]
        for name in others:
            if await self.has_new(move, name):
                return name
        return None

    def _variants(
        self, move: str, parent: str | None, board: Board, numbers: Sequence[int]
    ) -> AsyncIterator[VariantDraft]:
        draft = IdeaDraft("other", move, {MOVE: move})
        return self._proposer.variants(self._task, draft, self._kernel(parent), board, numbers, self._seed)

    def _kernel(self, name: str | None) -> Kernel | None:
        found = self._state.variants.get(name) if name is not None else None
        if found is None or found.verdict is None:
            return None
        return kernel_of(self._state, found, self._sources)
