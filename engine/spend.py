"""What calls to models have cost: the fold of their events, by model, problem, round and idea. Pure.

Three figures are kept apart. ``usage`` and ``dollars`` are known to the token. ``unknown`` is the most that attempts
may have cost of which nobody said what they did (a connection that broke in mid-reply, an engine that died). What is
``held`` was kept back for attempts under way. Limits count all three; screens show the first and name the second.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from engine.events import ModelCallFailed, ModelCallStarted, ModelReplied
from engine.models.protocol import CallSite, Finish, Usage

MANUAL = "manual"
"""The provider whose calls are answered by a person: they outlive an engine."""


class Amount(NamedTuple):
    """Tokens and dollars; ``dollars`` is None where a price is unknown, and then a sum with it is too."""

    tokens: int = 0
    dollars: float | None = 0.0

    def plus(self, other: Amount) -> Amount:
        known = self.dollars is not None and other.dollars is not None
        return Amount(self.tokens + other.tokens, self.dollars + other.dollars if known else None)  # type: ignore[operator]


NOTHING = Amount()


class Spend(Struct):
    """``calls``: attempts that were sent, ``failed`` of them without a reply. ``unpriced``: those among the known
    whose price is unknown, so that ``dollars`` is a lower bound. ``uncertain``: attempts that ``unknown`` is for."""

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
        """Tokens known to be billed."""
        return self.usage.total

    @property
    def at_most(self) -> Amount:
        """What was spent if every uncertain attempt cost the most it could."""
        return Amount(self.tokens, None if self.unpriced else self.dollars).plus(self.unknown)


class CallState(Struct):
    """One call with its attempts. ``problem``, ``round`` and ``idea`` are what it is counted under.

    ``reply`` is the digest of its text, None until it came; ``failure`` is the last attempt's, None while none failed
    or once a later one succeeded; ``wait_s`` is set while it waits for its next attempt.
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
    """Everything that the call is counted under."""


class Spending(Struct):
    """All calls of a session and what they cost. ``model``: by name of the ``[[models]]`` table; ``round``: by id
    (``softmax/r2``); ``idea``: kernels and fixes only."""

    total: Spend = field(default_factory=Spend)
    model: dict[str, Spend] = field(default_factory=dict)
    problem: dict[str, Spend] = field(default_factory=dict)
    round: dict[str, Spend] = field(default_factory=dict)
    idea: dict[str, Spend] = field(default_factory=dict)
    calls: dict[str, CallState] = field(default_factory=dict)
    flying: dict[str, CallState] = field(default_factory=dict)
    _numbered: int = 0

    def new_call(self) -> str:
        """An id that no call of the session has, and that is not given again: the engine's to ask for."""
        self._numbered += 1
        return f"c{self._numbered}"

    @property
    def held(self) -> Amount:
        """Kept back for the attempts under way."""
        held = Amount()
        for call in self.flying.values():
            held = held.plus(call.hold)
        return held

    def started(self, event: ModelCallStarted, idea: str | None, time: float) -> None:
        """``idea``: the one that the call's site is about, if any."""
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
        """The engine died: whether its calls were answered, and billed, nobody knows. What a person was asked waits."""
        for call in [one for one in self.flying.values() if one.provider != MANUAL]:
            call.failure, call.message, call.ended_at = "cancelled", "the engine died while it was under way", time
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
        """Everything that a call is counted under."""
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
