"""A new search begins with the best kernels of earlier sessions for the same problem (``bank`` in the config)."""

from __future__ import annotations

import asyncio

from engine.events import IdeaProposed, LogLine, VariantWritten
from engine.library import Library, best_for, read_library
from engine.search.context import Context
from engine.search.telling import SEEDED

FROM_BANK = "bank"
"""Proposer of the ideas under which kernels of earlier sessions stand."""


class Bank:
    """Reads the sessions that ``bank`` names, once, and seeds problems from them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._library: Library | None = None

    async def seed(self, problem_id: str) -> None:
        """Record the best kernels for the problem as kernels of its round 0. Does nothing without a bank.

        Each is judged like any other before it counts: another machine's figures are a reason to try it, no verdict.
        Raises SessionError when the session cannot be written.
        """
        context = self._context
        if not context.config.bank:
            return
        problem = context.state.problems[problem_id]
        library = await self._read()
        chosen = best_for(library, problem.spec, problem.form, context.device, context.config.search.survivors)
        known = {proposer.name for proposer, _ in context.proposers}
        for saved, reason in chosen:
            digest = context.sources.claim(problem_id, saved.source)
            if digest is None:
                continue
            idea = IdeaProposed(
                idea=context.ids.idea(),
                problem=problem_id,
                round=0,
                parent=None,
                category=saved.category,
                text=f"From the bank, {saved.variant} of session {saved.session}: {reason}. Its idea: {saved.idea}",
                proposer=FROM_BANK,
                data={SEEDED: True},
            )
            ours = saved.proposer in known
            variant = VariantWritten(
                variant=context.ids.variant(),
                idea=idea.idea,
                problem=problem_id,
                round=0,
                parent=None,
                form=saved.form,
                source=digest,
                # Its author goes on with it where it takes part here too.
                proposer=saved.proposer if ours else FROM_BANK,
                note=f"{saved.variant} of {saved.session}",
                data=saved.data if ours else {},
            )
            await context.journal.record(idea, variant)

    async def _read(self) -> Library:
        if self._library is None:
            context = self._context
            self._library = await asyncio.to_thread(
                read_library, context.config.bank, without=(context.paths.directory,)
            )
            found = f"{len(self._library.kernels)} correct kernels in {self._library.sessions} sessions"
            unread = "".join(f"; not read: {reason}" for reason in self._library.unread)
            doubtful = bool(self._library.unread) or not self._library.sessions
            await context.journal.record(
                LogLine(level="warning" if doubtful else "info", text=f"bank: {found}{unread}")
            )
        return self._library
