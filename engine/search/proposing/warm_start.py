"""Warm start: a new search begins with the best kernels of earlier sessions (``warm_start`` in the config)."""

from __future__ import annotations

import asyncio

from engine.search.context import Context
from engine.session.library import Library, best_for, read_library
from engine.session.records.events import IdeaProposed, LogLine, VariantWritten
from engine.session.state.nodes import SEEDED, WARM_START


class WarmStart:
    """Read the sessions in the config's ``warm_start`` once, and seed problems with kernels from these sessions."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._library: Library | None = None

    async def seed(self, problem_id: str) -> None:
        """Add the problem's best kernels from earlier sessions to its round 0. Without ``warm_start``, do nothing.

        The judge evaluates each kernel again, because times from other machines or sessions are not comparable. Raises
        SessionError if the session cannot be written.
        """
        context = self._context
        if not context.config.warm_start:
            return
        problem = context.state.problems[problem_id]
        library = await self._read()
        chosen = best_for(library, problem.spec, problem.languages, context.device, context.config.search.parents)
        known = {proposer.name for proposer, _ in context.proposers}
        for saved, reason in chosen:
            name, digest, is_new = context.sources.claim(problem_id, saved.source, context.ids.variant)
            if not is_new:
                continue
            idea = IdeaProposed(
                idea=context.ids.idea(),
                problem=problem_id,
                round=0,
                parent=None,
                category=saved.category,
                text=f"Warm start from {saved.variant} of session {saved.session}: {reason}. Its idea: {saved.idea}",
                proposer=WARM_START,
                data={SEEDED: True},
            )
            ours = saved.proposer in known
            variant = VariantWritten(
                variant=name,
                idea=idea.idea,
                problem=problem_id,
                round=0,
                parent=None,
                language=saved.language,
                source=digest,
                # If the kernel's author takes part in this search, that author also develops the kernel further.
                proposer=saved.proposer if ours else WARM_START,
                note=f"{saved.variant} of {saved.session}",
                data=saved.data if ours else {},
            )
            await context.journal.record(idea, variant)

    async def remember(self) -> None:
        """Offer proposers the ideas that worked in earlier sessions. Raises SessionError if the session cannot be
        written.
        """
        if self._context.config.warm_start:
            self._context.remembered = (await self._read()).ideas

    async def _read(self) -> Library:
        if self._library is None:
            context = self._context
            self._library = await asyncio.to_thread(
                read_library, context.config.warm_start, without=(context.paths.directory,)
            )
            kernels, sessions = len(self._library.kernels), self._library.sessions
            found = f"{kernels} correct kernel{'s' * (kernels != 1)} in {sessions} session{'s' * (sessions != 1)}"
            unread = "".join(f"; cannot read: {reason}" for reason in self._library.unread)
            doubtful = bool(self._library.unread) or not self._library.sessions
            await context.journal.record(
                LogLine(level="warning" if doubtful else "info", text=f"the warm start found {found}{unread}")
            )
        return self._library
