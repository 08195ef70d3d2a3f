"""Generate a language model's events for a synthetic search: calls, retries, useless replies, and costs."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator

from engine.proposers.llm.model_protocol import Prompt
from engine.session.records import events as ev
from engine.session.records.events import AnyEvent
from engine.session.records.model_calls import CallSite, Purpose, Usage, call_name

PROVIDER, MODEL, ANSWERED = "openai", "gpt-5.5", "gpt-5.5-2026-04-23"
INPUT_PRICE, OUTPUT_PRICE = 1.25e-6, 10e-6
"""Dollars per token."""
SYSTEM = "You write kernels that beat a PyTorch operation. The reference, its shapes and the device are below."


class Calls:
    """Generate a model's calls. ``store`` saves a text as a blob and returns its digest."""

    def __init__(self, seed: int, store: Callable[[str], str]) -> None:
        self._rng = random.Random(seed)
        self._store = store
        self._count = 0

    def writes(self) -> bool:
        """Return whether the model proposes the next idea, which happens for two of five ideas."""
        return self._rng.random() < 0.4

    def call(self, problem: str, round_number: int, purpose: Purpose, subject: str, number: int) -> Iterator[AnyEvent]:
        """Yield a call and its reply, sometimes after a failed attempt."""
        rng, site = self._rng, CallSite(problem, round_number, purpose, subject, number)
        self._count += 1
        call, attempt = f"c{self._count}", 1
        prompt = self._store(Prompt(purpose, SYSTEM, f"{call_name(site)}: write the next {purpose}").encode())
        yield self._started(call, attempt, site, prompt)
        if rng.random() < 0.02:
            yield ev.ModelCallFailed(
                call=call,
                attempt=attempt,
                failure="rate_limit",
                message="429: rate limit reached for tokens per minute",
                wait_s=4.0,
                seconds=0.4,
                usage=Usage(),
                dollars=0.0,
            )
            attempt += 1
            yield self._started(call, attempt, site, prompt)
        usage = Usage(input=3000 + rng.randrange(4000), output=1500 + rng.randrange(6000), cached=2048, reasoning=1024)
        yield ev.ModelReplied(
            call=call,
            attempt=attempt,
            answered=ANSWERED,
            prompt=prompt,
            reply=self._store(f"Reply to {call_name(site)}"),
            finish="stop",
            seconds=20 + 60 * rng.random(),
            usage=usage,
            dollars=usage.input * INPUT_PRICE + usage.output * OUTPUT_PRICE,
        )

    def useless(self, problem: str, round_number: int, idea: str, number: int) -> Iterator[AnyEvent]:
        """Sometimes yield a kernel call with a useless reply."""
        if self._rng.random() > 0.01:
            return
        yield from self.call(problem, round_number, "kernel", idea, number)
        reason = "no fenced code block in the reply"
        yield ev.AnswerMissing(
            problem=problem,
            round=round_number,
            purpose="kernel",
            subject=idea,
            proposer=MODEL,
            reason=reason,
            call=f"c{self._count}",
        )
        text = (
            f"{problem}: {MODEL} returned too few kernels for {idea}: {reason}; the search asks again in the next round"
        )
        yield ev.LogLine(level="warning", text=text)

    def _started(self, call: str, attempt: int, site: CallSite, prompt: str) -> ev.ModelCallStarted:
        return ev.ModelCallStarted(
            call=call,
            attempt=attempt,
            provider=PROVIDER,
            model=MODEL,
            site=site,
            prompt=prompt,
            tokens=24_000,
            dollars=0.2,
        )


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
