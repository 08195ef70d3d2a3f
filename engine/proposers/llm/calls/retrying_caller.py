"""Calls to one model: attempts, retries, cost and recording. Only this module retries calls.

The caller records each attempt before sending it, each failure before the next wait, and each reply before parsing.
The session file therefore contains all confirmed spending and the maximum cost of attempts in flight, even after a
crash (``engine.session.state.spend``).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from msgspec import Struct

from engine.proposers.llm.calls.concurrency_limiter import Gate
from engine.proposers.llm.calls.ledger import Ledger, OutputLimit
from engine.proposers.llm.calls.prices import Price
from engine.proposers.llm.model_protocol import CallFailed, ModelClient, Prompt, Reply
from engine.session.records.events import AnyEvent, ModelCallFailed, ModelCallStarted, ModelReplied
from engine.session.records.model_calls import HOPELESS, CallSite, FailureKind, Usage
from engine.session.state.spend import Amount

_log = logging.getLogger(__name__)

RETRIED: frozenset[FailureKind] = frozenset(
    {"rate_limit", "server", "connection", "timeout", "broken_reply", "cut_short", "program"}
)
"""Kinds of failure after which another attempt at the same call may succeed."""

_BYTES_PER_TOKEN = 2
"""A lower bound on bytes per token, for any tokenizer on code or prose. Token estimates from this bound are upper
bounds.
"""
_OVERHEAD_TOKENS = 200
_MESSAGE = 500


class Retry(Struct, frozen=True):
    """Retry policy. Delays double from ``first_s`` to ``longest_s``. The caller randomly shortens each delay by up to
    half.

    The caller obeys a server's ``Retry-After``. The caller gives up if the next attempt would start more than
    ``patience_s`` after the first failure. The caller also gives up if the provider may have billed more than
    ``costly`` failures.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    patience_s: float = 600.0
    costly: int = 2

    def wait_s(self, error: CallFailed, failures: int, costly: int, waited_s: float) -> float | None:
        """Return the seconds until the next attempt of a failed call; None to give up.

        Args:
            error: The latest failure.
            failures: Number of the call's failures, including ``error``.
            costly: How many of these failures the provider may have billed.
            waited_s: Seconds since the first failure.
        """
        if error.kind not in RETRIED or costly > self.costly:
            return None
        backoff = min(self.longest_s, self.first_s * 2 ** min(failures - 1, 30)) * random.uniform(0.5, 1.0)
        wait_s = max(backoff, error.retry_after_s or 0.0)
        return wait_s if waited_s + wait_s <= self.patience_s else None


class Recorder(Protocol):
    """The interface for recording calls, which the search's journal implements."""

    def put_blob(self, text: str) -> str:
        """Store a text and return its digest. The text reaches the disk before any later event.

        Raises ``SessionError`` if the engine cannot write the session.
        """
        ...

    async def record(self, *events: AnyEvent) -> None:
        """Record events, and return once the events are on disk and in the state.

        Raises ``SessionError`` if the engine cannot write the session.
        """
        ...

    def post(self, event: AnyEvent) -> asyncio.Future[None]:
        """Record an event. The future completes once the event is on disk and in the state."""
        ...


def prompt_digest(prompt: Prompt) -> str:
    """Return the digest under which the session stores a prompt."""
    return hashlib.sha256(prompt.encode().encode()).hexdigest()


class Caller:
    """Make calls to one model. ``name`` is the name of the model's ``[[models]]`` table. ``gate`` limits concurrent
    calls.
    """

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
        """The failure that prevents all later calls (invalid key, no quota left, unknown model), or None."""
        return self._hopeless

    async def call(self, site: CallSite, prompt: Prompt, on_text: Callable[[str], None] | None = None) -> Reply:
        """Call the model, record the reply, and return it.

        While the reply is streaming, the caller passes the text so far to ``on_text``. At the start of each attempt,
        this text is "".

        Raises:
            CallFailed: All attempts failed.
            OverBudget: A limit forbids an attempt.
            SessionError: The engine cannot write the session.
        """
        digest = self._recorder.put_blob(prompt.encode())
        call = _Call(self._ledger.next_call(), site, prompt, digest, on_text or _ignore)
        while True:
            outcome = await self._attempt(call)
            if isinstance(outcome, Reply):
                return outcome
            await asyncio.sleep(outcome)

    async def close(self) -> None:
        await self.client.close()

    async def _attempt(self, call: _Call) -> Reply | float:
        """Make one attempt. Returns the reply, or the seconds until the next attempt. Raises the same exceptions as
        :meth:`call`.
        """
        settled: asyncio.Future[None] | None = None
        async with self.gate.enter() as entered:
            if self._hopeless is not None:  # Another call failed permanently while this call was waiting.
                raise CallFailed(self._hopeless.kind, str(self._hopeless), usage=Usage())
            worst = self._at_most(call.prompt)
            output = OutputLimit(self.client.limit, partial(self._largest_output, call.prompt))
            hold = await self._ledger.hold(self.name, call.site, worst, output)
            call.attempt += 1
            began, sent = time.monotonic(), False

            def settle(event: AnyEvent) -> asyncio.Future[None]:
                folded = self._recorder.post(event)
                # The state must include the attempt's cost before the reservation ends.
                folded.add_done_callback(lambda _: self._ledger.release(hold))
                return folded

            try:
                await self._recorder.record(self._started(call, worst))
                began, sent = time.monotonic(), True
                call.on_text("")  # Discard the previous attempt's text.
                outcome: Reply | _Failure
                try:
                    outcome = await self.client.complete(call.prompt, call.on_text)
                    settled = settle(self._replied(call, outcome, time.monotonic() - began))
                    self.gate.answered()
                except CallFailed as error:
                    outcome, event = self._failed(call, error, entered, began)
                    settled = settle(event)
            finally:
                if settled is None:  # The search canceled the call, or this module raised an error.
                    settle(
                        ModelCallFailed(
                            call=call.id,
                            attempt=call.attempt,
                            failure="cancelled",
                            message="canceled by the search",
                            wait_s=None,
                            seconds=time.monotonic() - began,
                            usage=None if sent else Usage(),
                            dollars=None if sent else 0.0,
                        )
                    )
        await settled  # Wait without a slot, so that the next call can start.
        if isinstance(outcome, Reply):
            return outcome
        if outcome.wait_s is None:
            raise outcome.error
        return outcome.wait_s

    def _failed(self, call: _Call, error: CallFailed, entered: float, began: float) -> tuple[_Failure, ModelCallFailed]:
        """Handle a failed attempt. Returns the failure with its delay, and the event that records the failure."""
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
            dollars=error.dollars if error.dollars is not None else self._dollars(error.usage),
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
            dollars=reply.dollars if reply.dollars is not None else self._dollars(reply.usage, reply.model, reply.tier),
            tier=reply.tier,
        )

    def _dollars(self, usage: Usage | None, answered: str = "", tier: str = "") -> float | None:
        if usage is None:
            return None
        return self._price.dollars(usage, answered, tier) if usage.total else 0.0

    def _at_most(self, prompt: Prompt, output_tokens: int | None = None) -> Amount:
        """Return an attempt's maximum cost with ``output_tokens`` or, by default, with the config's output limit."""
        output_tokens = self.client.limit if output_tokens is None else output_tokens
        input_tokens = len(prompt.encode().encode()) // _BYTES_PER_TOKEN + _OVERHEAD_TOKENS
        return Amount(input_tokens + output_tokens, self._price.at_most(input_tokens, output_tokens))

    def _largest_output(self, prompt: Prompt, most: Amount) -> int:
        """Return the largest output limit for which an attempt costs at most ``most``; 0 if no limit fits."""

        def costs_more(output_tokens: int) -> bool:
            cost = self._at_most(prompt, output_tokens)
            dear = most.dollars is not None and (cost.dollars or 0.0) > most.dollars
            return dear or cost.tokens > most.tokens

        return max(0, bisect_left(range(self.client.limit + 1), True, key=costs_more) - 1)


@dataclass(slots=True)
class _Call:
    """A call with all its attempts. ``first_failure`` is a ``time.monotonic`` time in seconds."""

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
    """A failed attempt. ``wait_s`` is the delay in seconds before the next attempt; None to give up."""

    error: CallFailed
    wait_s: float | None


def _ignore(text: str) -> None:
    """Ignore a reply's partial text."""
