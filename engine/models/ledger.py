"""Keeps calls within their limits: what a call may cost at most is kept back before it is sent.

Limits count what is known to be spent, what uncertain attempts may have cost, and what is kept back for calls under way
(``engine.spend``); so no order of events can overshoot, whatever runs in parallel.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from engine.budget import NO_CAP, Cap, Caps
from engine.models.protocol import CallSite
from engine.spend import Amount, CallState, Spend, Spending

Scope = Literal["session", "problem", "model"]

_LOOK_AGAIN_S = 0.5
"""A person may raise a limit while a call waits for others to end."""


class OverBudget(Exception):
    """A limit forbids a call. ``which``: the problem or model whose limit it is, "" for the session's."""

    def __init__(self, message: str, scope: Scope, which: str) -> None:
        super().__init__(message)
        self.scope, self.which = scope, which


@dataclass(eq=False, slots=True)
class Hold:
    """What is kept back for one attempt."""

    model: str
    problem: str
    worst: Amount


class Ledger:
    """One for all models of a session. ``spending`` is the state's, folded in place; ``caps`` are asked every time."""

    def __init__(self, spending: Spending, caps: Callable[[], Caps]) -> None:
        self._spending = spending
        self._caps = caps
        self._holds: set[Hold] = set()
        self._ended = asyncio.Event()

    def next_call(self) -> str:
        """A new call's id."""
        return self._spending.new_call()

    async def hold(self, model: str, site: CallSite, worst: Amount) -> Hold:
        """Keep ``worst`` back for an attempt, until :meth:`release`. Waits while only calls under way stand in its way.

        Raises :class:`OverBudget` where a limit forbids it whatever those cost.
        """
        while True:
            self._ended.clear()
            refusals = [self._refusal(limit, model, site, worst) for limit in self._limits(model, site)]
            if final := next((refusal for refusal in refusals if isinstance(refusal, OverBudget)), None):
                raise final
            if "later" not in refusals:
                hold = Hold(model, site.problem, worst)
                self._holds.add(hold)
                return hold
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _LOOK_AGAIN_S)

    def release(self, hold: Hold) -> None:
        """The attempt ended, and what it cost is in the state (or it never began). Idempotent."""
        self._holds.discard(hold)
        self._ended.set()

    def _limits(self, model: str, site: CallSite) -> Iterator[tuple[Scope, str, Cap, Spend]]:
        caps, spending = self._caps(), self._spending
        every: tuple[tuple[Scope, str, Cap, Spend | None], ...] = (
            ("session", "", caps.session, spending.total),
            ("problem", site.problem, caps.problem, spending.problem.get(site.problem)),
            ("model", model, caps.models.get(model, NO_CAP), spending.model.get(model)),
        )
        for scope, which, cap, spend in every:
            if cap != NO_CAP:
                yield scope, which, cap, spend or Spend()

    def _refusal(
        self, limit: tuple[Scope, str, Cap, Spend], model: str, site: CallSite, worst: Amount
    ) -> OverBudget | Literal["later"] | None:
        scope, which, cap, spend = limit
        owner = "the session's limit of {}" if scope == "session" else f"the limit of {{}} for {which}"
        held = [hold.worst for hold in self._holds if _concerns(hold, scope, model, site)]
        flying = sum(_concerns(call, scope, model, site) for call in self._spending.flying.values())

        def refused(what: str, why: str) -> OverBudget:
            return OverBudget(f"{owner.format(what)} is reached: {why}", scope, which)

        calls = spend.calls - flying + len(held)
        if cap.calls is not None and calls >= cap.calls:
            return refused(f"{cap.calls:,} calls", f"{calls:,} were sent")
        spent = spend.at_most
        later = False
        if cap.tokens is not None:
            if spent.tokens + worst.tokens > cap.tokens:
                tail = f", up to {spend.unknown.tokens:,} uncounted" if spend.uncertain else ""
                return refused(
                    f"{cap.tokens:,} tokens",
                    f"{spend.tokens:,} spent{tail}, the next call of {model} up to {worst.tokens:,}",
                )
            later |= spent.tokens + sum(one.tokens for one in held) + worst.tokens > cap.tokens
        if cap.dollars is not None:
            if worst.dollars is None or spent.dollars is None:
                unknown = model if worst.dollars is None else "an earlier call"
                return OverBudget(
                    f"{owner.format(f'${cap.dollars:g}')} cannot be kept: the price of {unknown} is unknown; give "
                    "input_price and output_price in its [[models]] table, or a limit of tokens in place of dollars",
                    scope,
                    which,
                )
            if spent.dollars + worst.dollars > cap.dollars:
                tail = f", up to ${spend.unknown.dollars:.2f} uncounted" if spend.uncertain else ""
                return refused(
                    f"${cap.dollars:g}",
                    f"${spend.dollars:.2f} spent{tail}, the next call of {model} up to ${worst.dollars:.2f}",
                )
            later |= spent.dollars + sum(one.dollars or 0.0 for one in held) + worst.dollars > cap.dollars
        return "later" if later else None


def _concerns(hold: Hold | CallState, scope: Scope, model: str, site: CallSite) -> bool:
    problem = hold.problem if isinstance(hold, Hold) else hold.site.problem
    return scope == "session" or (problem == site.problem if scope == "problem" else hold.model == model)
