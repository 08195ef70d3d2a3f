"""Find untried kernels that a generator, such as the playbook, can write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from engine.proposers.protocol import Board, IdeaDraft, Kernel, Proposer, Task, VariantDraft
from engine.search.context import Context
from engine.search.ids import seed_for
from engine.search.proposing.proposer_context import Texts, board_of, kernel_of
from engine.session.state.nodes import TRANSFORMATION
from engine.session.state.session_state import ProblemState, SessionState

_NAMED = 3
"""Maximum number of alternative transformations that an answer suggests."""
_LOOKED_AT = 8
"""Maximum number of transformations, and of kernels, to examine for suggestions."""


def named(proposer: Proposer) -> str:
    """Return the proposer's name for use in a sentence."""
    return "the playbook" if proposer.name == "playbook" else proposer.name


async def why_nothing_new(
    context: Context, proposer: Proposer, problem: ProblemState, parent: str | None, transformation: str
) -> str | None:
    """Explain why ``proposer`` cannot write a new kernel for ``transformation`` on ``parent``, and name alternatives.

    ``proposer`` must generate kernels instantly, as the playbook does. Returns None if a new kernel exists. Raises
    SessionError.
    """
    look = Untried(
        context.state,
        context.sources,
        proposer,
        context.task(problem),
        parent,
        variants=context.config.search.variants,
        next_idea=context.ids.next_idea,
    )
    if await look.has_new(transformation, parent):
        return None
    where = parent or "the reference"
    if await look.applies(transformation, parent):
        every = f"all kernels that {named(proposer)} can write for {transformation} on {where}"
        said = f"the search has tried or queued {every}"
    else:
        writer = context.state.variants[parent].proposer if parent is not None else proposer.name
        because = (
            f"{named(proposer)} did not write this kernel"
            if writer != proposer.name
            else "it is already applied, or it has no effect"
        )
        said = f"{transformation} does not apply to {where}: {because}"
    others, other_kernel = (
        await look.transformations(parent, transformation),
        await look.kernel_for(transformation, parent),
    )
    instead = [f"on {where}, try {' or '.join(others)}"] if others else []
    instead += [f"on {other_kernel}, try {transformation}"] if other_kernel is not None else []
    return f"{said}; {'; '.join(instead) or f'{named(proposer)} has no untried transformation for {where}'}"


def develop_only_own(context: Context, problem: ProblemState) -> bool:
    """Return whether each proposer of ideas for ``problem`` is a generator, which cannot develop other authors'
    kernels. Return False if there is no proposer.
    """
    proposers, task = context.idea_proposers(problem.id), context.task(problem)
    return bool(proposers) and not any(one.reads_prose or not one.catalogue(task) for one in proposers)


async def nothing_left(context: Context, problem: ProblemState, kernel: str) -> bool:
    """Return whether no proposer has a new idea for ``kernel``: the search has tried each idea that applies to its
    source.

    Returns False if there is no proposer. Also returns False if a proposer reads free text or replays a session,
    because that proposer may have a new idea. Raises SessionError.
    """
    if not develop_only_own(context, problem):
        return False
    proposers, task = context.idea_proposers(problem.id), context.task(problem)
    found, number = context.state.variants[kernel], problem.rounds[-1].number
    known = kernel_of(context.state, found, context.sources)
    board = board_of(context.state, problem, number, kernel, context.sources)
    for proposer in proposers:
        seed = seed_for(context.state.seed, problem.id, number + 1, kernel, proposer.name)
        try:
            if await proposer.ideas(task, known, board, 1, seed):
                return False
        except Exception:  # An error counts as a missing answer. The round repeats the request.
            return False
    return True


class Known(Texts, Protocol):
    """Kernel sources of a search: the engine's :class:`~engine.search.kernel_sources.Sources`, or a monitor's
    reader.
    """

    def has(self, problem: str, text: str) -> bool:
        """Return whether ``problem`` already has a kernel with this source, judged or not."""
        ...


class Untried:
    """Find untried kernels that a proposer can write for a problem's kernel ``parent`` (None: the reference).

    The problem must have at least one round. ``variants``: kernels per idea. ``next_idea``: id of the next idea. Raises
    SessionError if a source cannot be read.
    """

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

    async def has_new(self, transformation: str, parent: str | None) -> bool:
        """Return whether a new idea with this transformation would yield a new source for the problem."""
        async for one in self._variants(transformation, parent, self._board, self._numbers):
            if not self._sources.has(self._problem, one.source):
                return True
        return False

    async def applies(self, transformation: str, parent: str | None) -> bool:
        """Return whether the transformation yields any kernel for ``parent``, tried or not."""
        async for _ in self._variants(transformation, parent, Board(), range(1)):
            return True
        return False

    async def transformations(self, parent: str | None, but: str) -> list[str]:
        """Return the names of other transformations that are untried on ``parent``, most promising first."""
        known = {entry.name for entry in self._proposer.catalogue(self._task)} - {but}
        drafts = await self._proposer.ideas(self._task, self._kernel(parent), self._board, len(known), self._seed)
        names = [name for draft in drafts if (name := str(draft.data.get(TRANSFORMATION, ""))) in known][:_LOOKED_AT]
        return [name for name in names if await self.has_new(name, parent)][:_NAMED]

    async def kernel_for(self, transformation: str, but: str | None) -> str | None:
        """Return the fastest other kernel on which the search has not tried the transformation."""
        others = [one.id for one in self._state.leaders(self._problem, _LOOKED_AT) if one.id != but]
        for name in others:
            if await self.has_new(transformation, name):
                return name
        return None

    def _variants(
        self, transformation: str, parent: str | None, board: Board, numbers: Sequence[int]
    ) -> AsyncIterator[VariantDraft]:
        draft = IdeaDraft("other", transformation, {TRANSFORMATION: transformation})
        return self._proposer.variants(self._task, draft, self._kernel(parent), board, numbers, self._seed)

    def _kernel(self, name: str | None) -> Kernel | None:
        found = self._state.variants.get(name) if name is not None else None
        if found is None or found.verdict is None:
            return None
        return kernel_of(self._state, found, self._sources)
