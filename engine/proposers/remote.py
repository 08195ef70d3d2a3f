"""A model behind a network, as a language proposer asks it: what was paid for before is not asked again."""

from __future__ import annotations

from collections.abc import Callable

from engine.models.caller import Caller
from engine.models.ledger import OverBudget
from engine.models.protocol import CallFailed, CallSite, Prompt, Reply
from engine.proposers.protocol import NoAnswer, Spent
from engine.proposers.recorded import recorded_reply
from engine.state import SessionState


class Remote:
    """Asks through a :class:`~engine.models.caller.Caller`, which retries, pays and records."""

    awaited = 0

    def __init__(self, caller: Caller, state: SessionState, text: Callable[[str], str]) -> None:
        self._caller = caller
        self._state = state
        self._text = text

    async def call(self, site: CallSite, prompt: Prompt, on_text: Callable[[str], None] | None = None) -> Reply:
        """Raises NoAnswer, Spent, SessionError."""
        # By site alone: after a restart the search has moved on, and the same question has other words.
        if (known := recorded_reply(self._state, site, self._text)) is not None:
            return known
        try:
            return await self._caller.call(site, prompt, on_text)
        except OverBudget as error:
            raise Spent(str(error), error.scope) from error
        except CallFailed as error:
            raise NoAnswer(
                f"{error.kind.replace('_', ' ')}: {error}", lasting=self._caller.refusal is not None
            ) from error

    async def close(self) -> None:
        await self._caller.close()
