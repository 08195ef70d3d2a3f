"""A model behind a network, as a language proposer asks it: what was paid for before is not asked again."""

from __future__ import annotations

from collections.abc import Callable

from engine.models.caller import Caller
from engine.models.ledger import OverBudget
from engine.models.protocol import CallFailed, CallSite, FailureKind, Prompt, Reply, failure_words
from engine.proposers.protocol import NoAnswer, Spent
from engine.proposers.recorded import recorded_reply
from engine.state import SessionState


class Remote:
    """Asks through a :class:`~engine.models.caller.Caller`, which retries, pays and records.

    ``variable``: the environment variable that holds its key, None where none is sent.
    """

    awaited = 0

    def __init__(
        self, caller: Caller, state: SessionState, text: Callable[[str], str], variable: str | None = None
    ) -> None:
        self._caller = caller
        self._variable = variable
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
            what = f"{failure_words(error.kind)}: {error}"
            if (refusal := self._caller.refusal) is not None:
                raise NoAnswer(f"{what.rstrip('. ')}; {self._remedy(refusal.kind)}", lasting=True) from error
            raise NoAnswer(what) from error

    def _remedy(self, kind: FailureKind) -> str:
        if kind == "unknown_model":
            return "correct its name in the config, and run that again: a session keeps the config that it began with"
        if kind == "quota":
            return "see to the account, then resume the session"
        if self._variable is None:
            return "name the variable that holds its key with key_env in the config, and run that again"
        return f"set {self._variable} to a key that is accepted, then resume the session"

    async def close(self) -> None:
        await self._caller.close()
