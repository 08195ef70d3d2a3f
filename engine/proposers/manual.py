"""The proposer ``manual``: a person, with a chat window or a batch service, is the model.

Each prompt becomes a file, each reply is read from one (``engine.proposers.mailbox``); both are recorded as the calls
of any other model are, so that resume, replay and the monitor know no difference. It costs nothing that we could count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from engine.events import ModelCallFailed, ModelCallStarted, ModelReplied
from engine.models.protocol import CallSite, Finish, Prompt, Reply, Usage, call_name
from engine.proposers.mailbox import Mailbox
from engine.proposers.protocol import NoAnswer
from engine.proposers.recorded import recorded_reply
from engine.search.journal import Journal
from engine.spend import MANUAL
from engine.state import SessionState

LOOK_S = 0.4


class Manual:
    """Asks a person. ``name``: as calls are recorded. ``next_call`` gives a new call's id, ``text`` a blob's text."""

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
            if call.provider == MANUAL and not call.flying:  # an engine died before it could take the prompt away
                mailbox.withdraw(call_name(call.site))

    @property
    def awaited(self) -> int:
        """Calls for whose reply there is no file yet."""
        return sum(not self._mailbox.has_reply(call_name(site)) for site in self._waiting)

    async def call(self, site: CallSite, prompt: Prompt, on_text: Callable[[str], None] | None = None) -> Reply:
        """Wait for the person, as long as it takes. A call that an earlier engine put out goes on waiting."""
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
                    raise NoAnswer("pruned before it was answered")
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
        """A person pruned what the call is about: it waits no longer."""
        self._mailbox.withdraw(call_name(site))
        self._journal.post(
            ModelCallFailed(
                call=call,
                attempt=1,
                failure="cancelled",
                message="pruned before it was answered",
                wait_s=None,
                seconds=0.0,
                usage=Usage(),
                dollars=0.0,
            )
        )

    def _is_pruned(self, site: CallSite) -> bool:
        return self._state.is_pruned(site.subject or site.problem)

    async def close(self) -> None:
        """Prompts stay in the outbox: they still wait."""
