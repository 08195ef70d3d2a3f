"""Request replies from a remote model, and reuse recorded replies, so that you never pay for a reply twice."""

from __future__ import annotations

from collections.abc import Callable

from engine.proposers.llm.calls.ledger import OverBudget
from engine.proposers.llm.calls.retrying_caller import Caller
from engine.proposers.llm.model_protocol import CallFailed, Prompt, Reply
from engine.proposers.llm.recorded import recorded_reply
from engine.proposers.protocol import NoAnswer, Spent
from engine.session.records.model_calls import CallSite, FailureKind, failure_words
from engine.session.state.session_state import SessionState


class Remote:
    """Send prompts through a :class:`Caller`, which handles retries, spending and recording.

    ``variable`` names the environment variable with the API key, or is None if the model does not need a
    key.
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
        """Return the recorded reply if there is one; otherwise, request a new reply.

        Raises ``NoAnswer``, ``Spent`` or ``SessionError``.
        """
        # Compare only the site, because after a restart the same request may have a different prompt.
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
            return (
                "correct the model's name in the config, then start a new session, because a session keeps its "
                "original config"
            )
        if kind == "no_program":
            return "install the program, then resume the session"
        if kind == "quota":
            return "check the account's quota and billing, then resume the session"
        if self._variable is None:
            return (
                "set key_env in the config to the name of the environment variable with the API key, then start a new "
                "session"
            )
        return f"set {self._variable} to a valid key, then resume the session"

    async def close(self) -> None:
        await self._caller.close()
