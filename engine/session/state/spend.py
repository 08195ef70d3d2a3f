"""The cost of model calls, summed by model, problem, round and idea. All functions are pure.

Spending consists of three amounts. ``usage`` and ``dollars`` are the confirmed cost. ``unknown`` is the maximum cost of
unconfirmed attempts, whose cost the provider did not report (a broken connection, a dead engine). ``held`` is reserved
for attempts in flight. Limits apply to the sum of all three. Screens show the confirmed cost and mention the
unconfirmed maximum.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from engine.session.records.events import ModelCallFailed, ModelCallStarted, ModelReplied
from engine.session.records.model_calls import CallSite, Finish, Usage

MANUAL = "manual"
"""Provider name for replies that a person writes. Calls to this provider stay open when an engine ends."""


class Amount(NamedTuple):
    """Tokens and dollars. ``dollars`` is None if a price is unknown. In a sum, ``dollars`` is None if it is None in
    any of the amounts.
    """

    tokens: int = 0
    dollars: float | None = 0.0

    def plus(self, other: Amount) -> Amount:
        known = self.dollars is not None and other.dollars is not None
        return Amount(self.tokens + other.tokens, self.dollars + other.dollars if known else None)  # type: ignore[operator]


NOTHING = Amount()


class Spend(Struct):
    """The cost of a group of calls.

    ``calls`` counts all attempts; ``failed`` counts attempts without a reply. ``unpriced`` counts confirmed attempts
    without a known price; if there are any, ``dollars`` is a lower bound. ``uncertain`` counts the unconfirmed attempts
    behind ``unknown``.
    """

    calls: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    dollars: float = 0.0
    unpriced: int = 0
    uncertain: int = 0
    unknown: Amount = NOTHING
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens that providers billed."""
        return self.usage.total

    @property
    def at_most(self) -> Amount:
        """Total spending, with the maximum cost of every unconfirmed attempt."""
        return Amount(self.tokens, None if self.unpriced else self.dollars).plus(self.unknown)


class CallState(Struct):
    """A call with its attempts. ``problem``, ``round`` and ``idea`` are the groups to which its cost belongs.

    ``reply`` is the digest of the reply's text, or None before the reply arrives. ``failure`` is the last attempt's
    failure, if any. ``wait_s`` is set while the call is waiting for its next attempt.
    """

    id: str
    provider: str
    model: str
    site: CallSite
    prompt: str
    idea: str | None
    started_at: float
    attempts: int = 0
    flying: bool = True
    hold: Amount = NOTHING
    ended_at: float | None = None
    failure: str | None = None
    message: str = ""
    wait_s: float | None = None
    answered: str = ""
    reply: str | None = None
    finish: Finish = "stop"
    usage: Usage | None = None
    dollars: float | None = None
    tier: str = ""
    counted: list[Spend] = field(default_factory=list)
    """All groups to which the call's cost belongs."""


class Spending(Struct):
    """A session's calls and their cost. The keys of ``model`` are ``[[models]]`` names, and the keys of ``round`` are
    ids (``softmax/r2``). ``idea`` covers only calls for kernels and repairs.
    """

    total: Spend = field(default_factory=Spend)
    model: dict[str, Spend] = field(default_factory=dict)
    problem: dict[str, Spend] = field(default_factory=dict)
    round: dict[str, Spend] = field(default_factory=dict)
    idea: dict[str, Spend] = field(default_factory=dict)
    calls: dict[str, CallState] = field(default_factory=dict)
    flying: dict[str, CallState] = field(default_factory=dict)
    _numbered: int = 0

    def new_call(self) -> str:
        """Return an unused call id. Only the engine may call this method."""
        self._numbered += 1
        return f"c{self._numbered}"

    @property
    def held(self) -> Amount:
        """Amount reserved for attempts in flight."""
        held = Amount()
        for call in self.flying.values():
            held = held.plus(call.hold)
        return held

    @property
    def committed(self) -> Amount:
        """Total spending, with the maximum cost of every attempt that is unconfirmed or in flight."""
        return self.total.at_most.plus(self.held)

    def started(self, event: ModelCallStarted, idea: str | None, time: float) -> None:
        """Record the start of an attempt. ``idea`` is the idea that the call serves, if any."""
        call = self.calls.get(event.call)
        if call is None:
            call = CallState(event.call, event.provider, event.model, event.site, event.prompt, idea, time)
            call.counted = self._of(event.model, event.site, idea)
            self.calls[event.call] = call
            number = event.call.removeprefix("c")
            if number.isdigit():
                self._numbered = max(self._numbered, int(number))
        call.attempts, call.flying, call.wait_s = event.attempt, True, None
        call.hold = Amount(event.tokens, event.dollars)
        self.flying[event.call] = call
        for spend in call.counted:
            spend.calls += 1

    def failed(self, event: ModelCallFailed, time: float) -> None:
        call = self.calls.get(event.call)
        if call is None or not call.flying:
            return
        call.failure, call.message, call.wait_s, call.ended_at = event.failure, event.message, event.wait_s, time
        self._settle(call, event.usage, event.dollars, event.seconds, failed=True)

    def replied(self, event: ModelReplied, time: float) -> None:
        call = self.calls.get(event.call)
        if call is None or not call.flying:
            return
        call.failure, call.message, call.ended_at = None, "", time
        call.answered, call.reply, call.finish, call.tier = event.answered, event.reply, event.finish, event.tier
        call.usage, call.dollars = event.usage, event.dollars
        self._settle(call, event.usage, event.dollars, event.seconds, failed=False)

    def lost(self, time: float) -> None:
        """Mark the calls in flight as unconfirmed, because the engine died. Requests to a person remain open."""
        for call in [one for one in self.flying.values() if one.provider != MANUAL]:
            call.failure, call.message, call.ended_at = "cancelled", "the engine died during the call", time
            self._settle(call, None, None, max(0.0, time - call.started_at), failed=True)
        for call in self.calls.values():
            call.wait_s = None

    def _settle(
        self, call: CallState, usage: Usage | None, dollars: float | None, seconds: float, *, failed: bool
    ) -> None:
        for spend in call.counted:
            spend.failed += failed
            spend.seconds += seconds
            if usage is None:
                spend.uncertain += 1
                spend.unknown = spend.unknown.plus(call.hold)
            else:
                spend.usage = _sum(spend.usage, usage)
                spend.dollars += dollars or 0.0
                spend.unpriced += dollars is None
        call.flying, call.hold = False, NOTHING
        self.flying.pop(call.id, None)

    def _of(self, model: str, site: CallSite, idea: str | None) -> list[Spend]:
        """All groups to which a call's cost belongs."""
        found = [
            self.total,
            _under(self.model, model),
            _under(self.problem, site.problem),
            _under(self.round, f"{site.problem}/r{site.round}"),
        ]
        if idea is not None:
            found.append(_under(self.idea, idea))
        return found


def _under(spends: dict[str, Spend], key: str) -> Spend:
    if (found := spends.get(key)) is None:
        found = spends[key] = Spend()
    return found


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.input + other.input,
        one.output + other.output,
        one.cached + other.cached,
        one.reasoning + other.reasoning,
        one.cache_written + other.cache_written,
    )
