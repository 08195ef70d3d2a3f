"""Enforce spending limits: reserve the maximum cost of each attempt before sending the attempt.

Limits apply to the sum of confirmed spending, the maximum cost of unconfirmed attempts, and reservations for calls in
flight (``engine.session.state.spend``). Therefore parallel calls never exceed a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

from engine.config.model_tables import LEAST_OUTPUT
from engine.session.budget import NO_CAP, Cap, Caps
from engine.session.records.model_calls import CallSite
from engine.session.state.spend import Amount, CallState, Spend, Spending

Scope = Literal["session", "problem", "model"]

_NO_LIMIT = 1 << 62
_LOOK_AGAIN_S = 0.5
"""Seconds between checks of the limits while a call is waiting for other calls. A person may raise a limit while the
call is waiting.
"""


class OverBudget(Exception):
    """A limit forbids a call. ``which`` names the problem or model with the limit, or is "" for the session's limit."""

    def __init__(self, message: str, scope: Scope, which: str) -> None:
        super().__init__(message)
        self.scope, self.which = scope, which


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """The limit on a call's output. ``tokens`` is the config's ``max_output_tokens``, which mostly determines the
    call's maximum cost. ``fits`` returns the largest ``max_output_tokens`` for which a call costs at most a given
    amount. ``Amount.dollars`` is None if there is no dollar limit.
    """

    tokens: int
    fits: Callable[[Amount], int]


@dataclass(eq=False, slots=True)
class Hold:
    """The amount reserved for an attempt."""

    model: str
    problem: str
    worst: Amount


class Ledger:
    """The ledger for all of a session's models. ``spending`` is part of the session's state. Each check calls ``caps``
    for the current limits.
    """

    def __init__(self, spending: Spending, caps: Callable[[], Caps]) -> None:
        self._spending = spending
        self._caps = caps
        self._holds: set[Hold] = set()
        self._ended = asyncio.Event()

    def next_call(self) -> str:
        """Create the id of a new call."""
        return self._spending.new_call()

    async def hold(self, model: str, site: CallSite, worst: Amount, output: OutputLimit | None = None) -> Hold:
        """Reserve ``worst`` for an attempt until :meth:`release`. If calls in flight have reserved too much of a limit,
        wait until enough of them end.

        With ``output``, the error message can suggest a smaller ``max_output_tokens``.

        Raises :class:`OverBudget` if a limit forbids the attempt even if the calls in flight cost nothing.
        """
        while True:
            self._ended.clear()
            refusals = [self._refusal(limit, model, site, worst, output) for limit in self._limits(model, site)]
            if final := next((refusal for refusal in refusals if isinstance(refusal, OverBudget)), None):
                raise final
            if "later" not in refusals:
                hold = Hold(model, site.problem, worst)
                self._holds.add(hold)
                return hold
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _LOOK_AGAIN_S)

    def release(self, hold: Hold) -> None:
        """Release a reservation. Call this method after the state includes the attempt's cost, or if the caller never
        sent the attempt. Idempotent.
        """
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
        self,
        limit: tuple[Scope, str, Cap, Spend],
        model: str,
        site: CallSite,
        worst: Amount,
        output: OutputLimit | None,
    ) -> OverBudget | Literal["later"] | None:
        scope, which, cap, spend = limit
        owner = "the session's limit of {}" if scope == "session" else f"the limit of {{}} for {which}"
        held = [hold.worst for hold in self._holds if _concerns(hold, scope, model, site)]
        flying = sum(_concerns(call, scope, model, site) for call in self._spending.flying.values())

        def refused(what: str, why: str) -> OverBudget:
            return OverBudget(f"{owner.format(what)} is reached: {why}", scope, which)

        calls = spend.calls - flying + len(held)
        if cap.calls is not None and calls >= cap.calls:
            return refused(f"{cap.calls:,} calls", f"{calls:,} calls sent")
        spent = spend.at_most
        later = False
        if cap.tokens is not None:
            if spent.tokens + worst.tokens > cap.tokens:
                tail = f", up to {spend.unknown.tokens:,} unconfirmed" if spend.uncertain else ""
                return refused(
                    f"{cap.tokens:,} tokens",
                    f"{spend.tokens:,} used{tail}, and the next call to {model} may use {worst.tokens:,}"
                    + _remedy(cap, spent, worst, output),
                )
            later |= spent.tokens + sum(one.tokens for one in held) + worst.tokens > cap.tokens
        if cap.dollars is not None:
            if worst.dollars is None or spent.dollars is None:
                unknown = model if worst.dollars is None else "an earlier call"
                return OverBudget(
                    f"{owner.format(f'${cap.dollars:g}')} cannot be checked: the price of {unknown} is unknown. Set "
                    "input_price and output_price in the model's [[models]] table, or limit tokens instead of dollars. "
                    "Then start a new session, because a session keeps its original config",
                    scope,
                    which,
                )
            if spent.dollars + worst.dollars > cap.dollars:
                tail = f", up to ${spend.unknown.dollars:.2f} unconfirmed" if spend.uncertain else ""
                return refused(
                    f"${cap.dollars:g}",
                    f"${spend.dollars:.2f} spent{tail}, and the next call to {model} may cost ${worst.dollars:.2f}"
                    + _remedy(cap, spent, worst, output),
                )
            later |= spent.dollars + sum(one.dollars or 0.0 for one in held) + worst.dollars > cap.dollars
        return "later" if later else None


def _remedy(cap: Cap, spent: Amount, worst: Amount, output: OutputLimit | None) -> str:
    """Return the change that makes one call fit the limit; "" if earlier calls have used up the limit."""
    by_tokens = cap.tokens is not None and worst.tokens > cap.tokens
    by_dollars = cap.dollars is not None and (worst.dollars or 0.0) > cap.dollars
    if output is None or not (by_tokens or by_dollars):
        return ""
    tokens_left = cap.tokens - spent.tokens if cap.tokens is not None else _NO_LIMIT
    dollars_left = cap.dollars - (spent.dollars or 0.0) if cap.dollars is not None else None
    fits = output.fits(Amount(tokens_left, dollars_left))
    larger = [f"{worst.tokens:,} tokens"] * by_tokens + [f"${_cents_up(worst.dollars or 0.0):g}"] * by_dollars
    change = (
        f". Or set max_output_tokens = {fits} in the model's [[models]] table and start a new session"
        if fits >= LEAST_OUTPUT
        else ""
    )
    return (
        f", because its max_output_tokens is {output.tokens}. To continue, raise the limit to "
        f"{' and '.join(larger)} or more{change}"
    )


def _cents_up(dollars: float) -> float:
    return ceil(dollars * 100) / 100


def _concerns(hold: Hold | CallState, scope: Scope, model: str, site: CallSite) -> bool:
    problem = hold.problem if isinstance(hold, Hold) else hold.site.problem
    return scope == "session" or (problem == site.problem if scope == "problem" else hold.model == model)
