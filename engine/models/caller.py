"""Calls to one model: recorded, retried, paid for. The one place where a call is repeated.

Everything that happens is an event before it has consequences: an attempt before it is sent, a failure before the wait
that follows it, a reply before anyone reads it. After a death at any moment, what is known to be spent is in the
session file, and of attempts under way the most that they may have cost (``engine.spend``).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from engine.events import AnyEvent, ModelCallFailed, ModelCallStarted, ModelReplied
from engine.models.gate import Gate
from engine.models.ledger import Ledger
from engine.models.prices import Price
from engine.models.protocol import HOPELESS, CallFailed, CallSite, FailureKind, ModelClient, Prompt, Reply, Usage
from engine.spend import Amount

_log = logging.getLogger(__name__)

RETRIED: frozenset[FailureKind] = frozenset(
    {"rate_limit", "server", "connection", "timeout", "broken_reply", "cut_short"}
)
"""Failures after which the same call may succeed."""

_BYTES_PER_TOKEN = 2
"""Fewer bytes to a token than any tokenizer in use has on code or prose, so that an estimate is an upper bound."""
_OVERHEAD_TOKENS = 200
_MESSAGE = 500


class Retry(Struct, frozen=True):
    """When an attempt is repeated. Waits double from ``first_s`` to ``longest_s``, each shortened at random by up to a
    half; what a server asks for (``Retry-After``) is waited in full, if that fits in ``patience_s`` of all waits.

    An attempt that cost nothing is repeated as long as patience lasts. One that the server may have worked on, and
    billed, is repeated ``costly`` times.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    patience_s: float = 600.0
    costly: int = 2

    def wait_s(self, error: CallFailed, failures: int, costly: int, waited_s: float) -> float | None:
        """Seconds until the next attempt, None where there is none. ``failures`` of the call so far, this one among
        them, ``costly`` of them maybe billed; ``waited_s`` since the first."""
        if error.kind not in RETRIED or costly > self.costly:
            return None
        backoff = min(self.longest_s, self.first_s * 2 ** min(failures - 1, 30)) * random.uniform(0.5, 1.0)
        wait_s = max(backoff, error.retry_after_s or 0.0)
        return wait_s if waited_s + wait_s <= self.patience_s else None


class Recorder(Protocol):
    """Where calls are recorded. The search's journal is one."""

    def put_blob(self, text: str) -> str:
        """Store a text; its digest. It is on disk before any event recorded later. Raises SessionError."""
        ...

    async def record(self, *events: AnyEvent) -> None:
        """Record, and return once it is on disk and folded. Raises SessionError."""
        ...

    def post(self, event: AnyEvent) -> asyncio.Future[None]:
        """Record; the future completes once it is on disk and folded."""
        ...


def prompt_digest(prompt: Prompt) -> str:
    """Under which the session keeps a prompt."""
    return hashlib.sha256(prompt.encode().encode()).hexdigest()


class Caller:
    """Asks one model. ``name``: of its ``[[models]]`` table. Any number of calls at once; ``gate`` holds them back."""

    def __init__(
        self,
        name: str,
        client: ModelClient,
        price: Price,
        gate: Gate,
        ledger: Ledger,
        recorder: Recorder,
        retry: Retry | None = None,
    ) -> None:
        self.name = name
        self.client = client
        self._price = price
        self.gate = gate
        self._ledger = ledger
        self._recorder = recorder
        self._retry = retry or Retry()
        self._hopeless: CallFailed | None = None

    @property
    def refusal(self) -> CallFailed | None:
        """Why this model is not asked any more (a wrong key, no quota left, no such model), or None."""
        return self._hopeless

    async def call(self, site: CallSite, prompt: Prompt, on_text: Callable[[str], None] | None = None) -> Reply:
        """The model's reply, recorded already; ``on_text`` is given the text so far while it streams, "" where an
        attempt begins.

        Raises :class:`CallFailed` when all attempts failed, ``OverBudget`` where a limit forbids one, SessionError.
        """
        digest = self._recorder.put_blob(prompt.encode())
        call = _Call(self._ledger.next_call(), site, prompt, digest, on_text or _nobody)
        while True:
            outcome = await self._attempt(call)
            if isinstance(outcome, Reply):
                return outcome
            await asyncio.sleep(outcome)

    async def close(self) -> None:
        await self.client.close()

    async def _attempt(self, call: _Call) -> Reply | float:
        """One attempt: the reply, or the seconds to wait before the next. Raises what :meth:`call` does."""
        settled: asyncio.Future[None] | None = None
        async with self.gate.enter() as entered:
            if self._hopeless is not None:  # found while this one waited
                raise CallFailed(self._hopeless.kind, str(self._hopeless), usage=Usage())
            worst = self._at_most(call.prompt)
            hold = await self._ledger.hold(self.name, call.site, worst)
            call.attempt += 1
            began, sent = time.monotonic(), False

            def settle(event: AnyEvent) -> asyncio.Future[None]:
                folded = self._recorder.post(event)
                # What it cost must be in the state before what was kept back for it is given free.
                folded.add_done_callback(lambda _: self._ledger.release(hold))
                return folded

            try:
                await self._recorder.record(self._started(call, worst))
                began, sent = time.monotonic(), True
                call.on_text("")  # what an attempt before it said is no part of this one
                outcome: Reply | _Failure
                try:
                    outcome = await self.client.complete(call.prompt, call.on_text)
                    settled = settle(self._replied(call, outcome, time.monotonic() - began))
                    self.gate.answered()
                except CallFailed as error:
                    outcome, event = self._failed(call, error, entered, began)
                    settled = settle(event)
            finally:
                if settled is None:  # cancelled, or a fault of ours
                    settle(
                        ModelCallFailed(
                            call=call.id,
                            attempt=call.attempt,
                            failure="cancelled",
                            message="given up by the search while it was under way",
                            wait_s=None,
                            seconds=time.monotonic() - began,
                            usage=None if sent else Usage(),
                            dollars=None if sent else 0.0,
                        )
                    )
        await settled  # the server is free for the next call meanwhile
        if isinstance(outcome, Reply):
            return outcome
        if outcome.wait_s is None:
            raise outcome.error
        return outcome.wait_s

    def _failed(self, call: _Call, error: CallFailed, entered: float, began: float) -> tuple[_Failure, ModelCallFailed]:
        """What follows from a failure, and the event that says so."""
        now = time.monotonic()
        call.failures += 1
        call.costly += error.usage is None or error.usage.total > 0
        call.first_failure = call.first_failure if call.first_failure is not None else now
        wait_s = self._retry.wait_s(error, call.failures, call.costly, now - call.first_failure)
        if error.kind == "rate_limit":
            self.gate.refused(entered, wait_s or 0.0)
        if error.kind in HOPELESS:
            self._hopeless = error
        message = str(error)[:_MESSAGE]
        _log.warning("%s: %s: attempt %d: %s: %s", self.name, call.id, call.attempt, error.kind, message)
        return _Failure(error, wait_s), ModelCallFailed(
            call=call.id,
            attempt=call.attempt,
            failure=error.kind,
            message=message,
            wait_s=wait_s,
            seconds=now - began,
            usage=error.usage,
            dollars=self._dollars(error.usage),
        )

    def _started(self, call: _Call, worst: Amount) -> ModelCallStarted:
        return ModelCallStarted(
            call=call.id,
            attempt=call.attempt,
            provider=self.client.provider,
            model=self.name,
            site=call.site,
            prompt=call.digest,
            tokens=worst.tokens,
            dollars=worst.dollars,
        )

    def _replied(self, call: _Call, reply: Reply, seconds: float) -> ModelReplied:
        return ModelReplied(
            call=call.id,
            attempt=call.attempt,
            answered=reply.model,
            prompt=call.digest,
            reply=self._recorder.put_blob(reply.text),
            finish=reply.finish,
            seconds=seconds,
            usage=reply.usage,
            dollars=self._dollars(reply.usage, reply.model, reply.tier),
            tier=reply.tier,
        )

    def _dollars(self, usage: Usage | None, answered: str = "", tier: str = "") -> float | None:
        if usage is None:
            return None
        return self._price.dollars(usage, answered, tier) if usage.total else 0.0

    def _at_most(self, prompt: Prompt) -> Amount:
        input_tokens = len(prompt.encode().encode()) // _BYTES_PER_TOKEN + _OVERHEAD_TOKENS
        return Amount(input_tokens + self.client.limit, self._price.at_most(input_tokens, self.client.limit))


@dataclass(slots=True)
class _Call:
    """One call, over its attempts. ``first_failure``: when (``time.monotonic``)."""

    id: str
    site: CallSite
    prompt: Prompt
    digest: str
    on_text: Callable[[str], None]
    attempt: int = 0
    failures: int = 0
    costly: int = 0
    first_failure: float | None = None


@dataclass(frozen=True, slots=True)
class _Failure:
    """How an attempt failed. ``wait_s``: until the next, None where there is none."""

    error: CallFailed
    wait_s: float | None


def _nobody(text: str) -> None:
    """Nobody watches the reply grow."""
