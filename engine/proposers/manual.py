"""The ``manual`` proposer: a person answers the prompts, for example with a chat window or a batch service.

The engine writes each prompt to a file and reads each reply from a file (``engine.proposers.mailbox``). The session
records calls to a person like calls to a model, so resume, replay and the monitor work as usual. Each call's
recorded cost is zero.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from engine.proposers.llm.model_protocol import Prompt, Reply
from engine.proposers.llm.recorded import recorded_reply
from engine.proposers.mailbox import Mailbox
from engine.proposers.protocol import NoAnswer
from engine.session.journal import Journal
from engine.session.records.events import ModelCallFailed, ModelCallStarted, ModelReplied
from engine.session.records.model_calls import CallSite, Finish, Usage, call_name
from engine.session.state.session_state import SessionState
from engine.session.state.spend import MANUAL

LOOK_S = 0.4


class Manual:
    """Send prompts to a person. ``name`` is the proposer's name in the session. ``next_call`` creates call ids.
    ``text`` reads a blob.
    """

    def __init__(
        self,
        name: str,
        mailbox: Mailbox,
        journal: Journal,
        state: SessionState,
        next_call: Callable[[], str],
        text: Callable[[str], str],
    ) -> None:
        self._name = name
        self._mailbox = mailbox
        self._journal = journal
        self._state = state
        self._next_call = next_call
        self._text = text
        self._waiting: set[CallSite] = set()
        for call in state.spending.calls.values():
            if call.provider == MANUAL and not call.flying:  # An earlier engine died before it could delete the prompt.
                mailbox.withdraw(call_name(call.site))

    @property
    def awaited(self) -> int:
        """Number of calls without a reply file."""
        return sum(not self._mailbox.has_reply(call_name(site)) for site in self._waiting)

    async def call(self, site: CallSite, prompt: Prompt, on_text: Callable[[str], None] | None = None) -> Reply:
        """Wait without a time limit for the person's reply, even if an earlier engine made the call."""
        if (reply := recorded_reply(self._state, site, self._text)) is not None:
            return reply
        name = call_name(site)
        began = time.time()
        known = next((call for call in self._state.spending.flying.values() if call.site == site), None)
        if known is None:
            digest = self._journal.put_blob(prompt.encode())
            number = self._next_call()
            await self._journal.record(
                ModelCallStarted(
                    call=number,
                    attempt=1,
                    provider=MANUAL,
                    model=self._name,
                    site=site,
                    prompt=digest,
                    tokens=0,
                    dollars=0.0,
                )
            )
        else:
            number, began, digest = known.id, known.started_at, known.prompt
            prompt = Prompt.decode(self._text(digest))
        self._mailbox.post(name, prompt)
        self._waiting.add(site)
        try:
            while (found := self._mailbox.reply(name)) is None:
                if self._is_pruned(site):
                    raise NoAnswer("a person pruned the idea or kernel before the reply arrived")
                await asyncio.sleep(LOOK_S)
        except (NoAnswer, asyncio.CancelledError):
            if self._is_pruned(site):
                self._give_up(number, site)
            raise
        finally:
            self._waiting.discard(site)
        finish: Finish = "stop" if found.whole else "length"
        await self._journal.record(
            ModelReplied(
                call=number,
                attempt=1,
                answered=self._name,
                prompt=digest,
                reply=self._journal.put_blob(found.text),
                finish=finish,
                seconds=max(0.0, time.time() - began),
                usage=Usage(),
                dollars=0.0,
            )
        )
        self._mailbox.withdraw(name)
        return Reply(found.text, self._name, Usage(), finish)

    def _give_up(self, call: str, site: CallSite) -> None:
        """Cancel a call, because a person pruned the call's idea or kernel."""
        self._mailbox.withdraw(call_name(site))
        self._journal.post(
            ModelCallFailed(
                call=call,
                attempt=1,
                failure="cancelled",
                message="a person pruned the idea or kernel before the reply arrived",
                wait_s=None,
                seconds=0.0,
                usage=Usage(),
                dollars=0.0,
            )
        )

    def _is_pruned(self, site: CallSite) -> bool:
        return self._state.is_pruned(site.subject or site.problem)

    async def close(self) -> None:
        """Do nothing, and leave the prompts in the outbox."""
