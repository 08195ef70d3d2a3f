"""Turns: search one problem at a time, each for its own minutes (``budget.minutes_per_problem``).

In a turn, the engine opens a problem, searches it, runs the deferred measurements and evicts the problem. All of these
steps count toward the problem's minutes. The search leaves time for the measurements, which stop when the problem's
minutes are used up. First, every problem gets one turn, in the config's order. The remaining minutes then go to
problems that may still improve. The session records turns as events. After a resume, the engine continues the open turn
with its remaining minutes.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Container
from typing import NamedTuple, Protocol

from engine.search.context import Context
from engine.search.deferred_work import RESERVES_SHARE, Owed, TurnLimit
from engine.search.problem_loader import Opening
from engine.session.records.events import TurnEnd, TurnEnded, TurnStarted
from engine.session.state.session_state import ProblemState, SessionState
from engine.session.state.spend import MANUAL
from engine.system import clock

LOOK_S = 0.1
"""Seconds between checks for the end of the turn."""
NEAR_SOL = 0.95
"""The % SOL, as a fraction, at which the engine stops searching a problem."""
ROUNDS_WITHOUT_GAIN = 3
"""Number of rounds in a row without a faster kernel after which a turn ends."""
REPLIES_S = 300.0
"""Longest wait for model calls in flight and their kernels at the end of a turn, in seconds."""
FIRST_VERDICT_S = 30.0
"""Maximum extension of a turn in seconds, if no kernel of the problem has a verdict yet."""
LAST_VERDICTS_S = 15.0
"""Longest wait for kernels in evaluation at the end of a turn or of the time budget, in seconds."""
LEAST_SHARE = 0.5
"""Minimum share of a problem's minutes that the problem's first turn gets, if earlier turns took too long."""
LEAST_MINUTES = 1.0
"""Length of the shortest extra turn, in minutes. Opening a problem takes seconds, so a shorter turn would spend most of
its time on opening.
"""


class NextTurn(NamedTuple):
    """A problem and the engine time for its turn, in minutes."""

    problem: str
    minutes: float


def next_turn(state: SessionState, minutes: float, closed: Container[str] = ()) -> NextTurn | None:
    """Return the next turn, or None if no problem can use the remaining time.

    An open turn continues. Otherwise, problems without a turn come first and share the minutes that earlier turns left
    them. Remaining minutes go to problems whose turns ended for lack of time, then to problems without recent gains.
    No more minutes go to problems that are near the SOL, out of ideas, refused or pruned.

    Args:
        state: The session's state.
        minutes: The config's minutes per problem. The benchmark's total includes the minutes of refused problems.
        closed: Problems that this engine can't search further: not opened, at a spending limit, or without ideas.
    """
    if (turn := state.turn) is not None:
        return NextTurn(turn.problem, turn.minutes)
    left = _minutes_left(state, minutes)
    if waiting := _without_turn(state, closed):
        return NextTurn(waiting[0], min(minutes, max(left / len(waiting), LEAST_SHARE * minutes)))
    able = _able(state, closed)
    least = min(LEAST_MINUTES, minutes / 2)
    short = [one for one in able if one.turn_end == "time"]
    wanting = short or [one for one in able if one.turn_end in ("no_gain", "limit") or _has_new_rounds(state, one)]
    if left < least or not wanting:
        return None
    first = min(wanting, key=lambda one: (one.turn_seconds, sol_share(state, one)))
    return NextTurn(first.id, min(left, max(left / len(wanting), least)))


def unclaimed_minutes(state: SessionState, minutes: float, closed: Container[str] = ()) -> float:
    """Return the minutes that remain after the open turn, if every problem without a turn gets its minutes."""
    waiting = [name for name in _without_turn(state, closed) if state.turn is None or name != state.turn.problem]
    running = state.turn.minutes if state.turn is not None else 0.0
    return max(0.0, _minutes_left(state, minutes) - running - minutes * len(waiting))


def _minutes_left(state: SessionState, minutes: float) -> float:
    """Return the benchmark's minutes minus those of ended turns. Minutes of refused problems go to other problems."""
    total = minutes * len(state.problems.keys() | state.refused.keys())
    return total - sum(one.turn_seconds for one in state.problems.values()) / 60


def _able(state: SessionState, closed: Container[str]) -> list[ProblemState]:
    return [one for one in state.problems.values() if one.id not in closed and _is_searchable(state, one)]


def _without_turn(state: SessionState, closed: Container[str]) -> list[str]:
    return [one.id for one in _able(state, closed) if one.turns == 0 or one.turn_end == "not_opened"]


def sol_share(state: SessionState, problem: ProblemState) -> float:
    """Return the SOL divided by the best kernel's time, or 0 without a correct kernel."""
    verdict = state.variants[problem.best].verdict if problem.best is not None else None
    return (verdict.sol_share or 0.0) if verdict is not None else 0.0


def rounds_without_gain(state: SessionState, problem: ProblemState, since: int) -> int:
    """Return the number of rounds that ended after round ``since`` and after the best kernel's round."""
    ended = [round_.number for round_ in problem.rounds if round_.finished_at is not None]
    best = state.variants[problem.best].round if problem.best is not None else 0
    return (ended[-1] if ended else 0) - max(best, since)


def _is_searchable(state: SessionState, problem: ProblemState) -> bool:
    if problem.id in state.refused or state.is_pruned(problem.id):
        return False
    seeded = any(variant.problem == problem.id for variant in state.in_flight())
    return problem.cannot_write is None or seeded


def _has_new_rounds(state: SessionState, problem: ProblemState) -> bool:
    """Return whether a person raised the number of rounds after the problem had completed its last round."""
    return problem.turn_end == "done" and state.rounds is not None and problem.rounds[-1].number < state.rounds


class TurnHost(Protocol):
    """The search that runs the rounds of the turn's problem."""

    def begin(self, problem: str) -> None:
        """Start the rounds of an open problem, and queue its kernels that have no verdict."""
        ...

    def is_at_rest(self, problem: str) -> bool:
        """Return whether no work on the problem is in progress or due."""
        ...

    async def halt(self, problem: str, limit_s: float) -> None:
        """End the problem's rounds, and wait up to ``limit_s`` seconds for evaluations. Kernels without a verdict stay
        queued in the session.
        """
        ...

    def forget(self, problem: str) -> None:
        """Remove the problem from the search."""
        ...


class Turns:
    """Give each problem its turns. ``owed`` runs the deferred work of the open problem."""

    def __init__(self, context: Context, opening: Opening, owed: Owed, host: TurnHost) -> None:
        self._context, self._state = context, context.state
        self._opening, self._owed, self._host = opening, owed, host
        self._done: dict[str, int | None] = {}
        """For each problem whose turn ended with ``done``: the limit on rounds at the end of the turn."""
        self.searching = False
        """Whether the rounds of an open problem are running."""

    async def run(self, minutes: float) -> None:
        """Run all turns. Returns when no problem can use the remaining time, or when a person ends the search after the
        running rounds. Raises SessionError.
        """
        await self._opening.announce()
        while (turn := self._next(minutes)) is not None:
            if self._state.turn is None:
                await self._context.journal.record(TurnStarted(problem=turn.problem, minutes=turn.minutes))
            reason = await self._search(turn, minutes)
            if reason is None:
                break
            await self._context.evaluator.evict()
            if reason == "done":
                self._done[turn.problem] = self._state.rounds
            await self._context.journal.record(TurnEnded(problem=turn.problem, reason=reason))
        if self._context.last_rounds and self._context.ending is None and self._context.spent is None:
            self._context.ending = "stopped"  # From here on, a person cannot cancel the planned stop.

    def _next(self, minutes: float) -> NextTurn | None:
        if self._state.turn is None and (self._context.spent is not None or self._context.last_rounds):
            return None
        return next_turn(self._state, minutes, self._closed())

    def _closed(self) -> set[str]:
        done = {name for name, rounds in self._done.items() if rounds == self._state.rounds}
        return done | self._context.unopened.keys() | self._context.closed.keys()

    async def _search(self, turn: NextTurn, minutes: float) -> TurnEnd | None:
        """Open the problem and search it. Returns None if a person ends the search after this round."""
        name = turn.problem
        continues = self._state.turn is not None and self._state.turn.stopped_s is not None
        try:
            if not await self._opening.open(name):
                return "refused" if name in self._state.refused else "not_opened"
            if continues:
                await self._context.journal.record(TurnStarted(problem=name, minutes=turn.minutes))
            spare_s = 60 * unclaimed_minutes(self._state, minutes, self._closed())
            limit = TurnLimit(60 * turn.minutes, spare_s)
            self._owed.limit(limit)
            self._host.begin(name)
            self.searching = True
            while (reason := self._reason_to_end(turn)) is None:
                if self._context.last_rounds and self._host.is_at_rest(name):
                    return None
                if self._is_late_for_calls(turn):
                    self._context.awaiting_replies.add(name)
                self._owed.end_late()
                await asyncio.sleep(LOOK_S)
            self.searching = False
            self._owed.limit(limit._replace(searched=True))
            await self._await_replies(name)
            self._context.closing.add(name)
            # Half of the time left before ``torch.compile`` is for the last kernels, and half for the runoff.
            left_s = self._left_s(turn) - self._owed.compile_reserve_s
            await self._host.halt(name, max(0.0, min(LAST_VERDICTS_S, left_s / 2)))
            await self._measure_the_rest()
            return reason
        finally:
            self.searching = False
            self._owed.limit(None)
            self._host.forget(name)
            self._context.closing.discard(name)
            self._context.awaiting_replies.discard(name)

    def _reason_to_end(self, turn: NextTurn) -> TurnEnd | None:
        context, problem = self._context, self._state.problems[turn.problem]
        if context.ending is not None or self._state.turn is None:  # The search is ending, or no turn is open.
            return None
        if self._state.is_pruned(problem.id):
            return "pruned"
        if context.paused:
            return None
        if sol_share(self._state, problem) >= NEAR_SOL:
            return "near_sol"
        if self._host.is_at_rest(problem.id):
            if problem.id in context.awaiting_replies:
                return "time"
            if not context.last_rounds:
                if context.spent_on(problem.id):
                    return "limit"
                return "no_proposer" if problem.cannot_write is not None else "done"
        if rounds_without_gain(self._state, problem, self._state.turn.round) >= ROUNDS_WITHOUT_GAIN:
            return "no_gain"
        left_s = self._left_s(turn)
        if not self._has_verdict(problem.id):
            return "time" if left_s <= -FIRST_VERDICT_S else None
        return "time" if left_s <= self._owed.turn_reserve_s else None

    def _is_late_for_calls(self, turn: NextTurn) -> bool:
        """Return whether the reply to a new model call would probably come too late for the turn. Before the problem's
        first verdict, no call is too late.
        """
        reserve_s = min(self._owed.turn_reserve_s + self._reply_s(), RESERVES_SHARE * 60 * turn.minutes)
        return self._has_verdict(turn.problem) and self._left_s(turn) <= reserve_s

    def _has_verdict(self, problem: str) -> bool:
        return any(variant.verdict is not None for variant in self._state.variants_of(problem))

    def _left_s(self, turn: NextTurn) -> float:
        """Seconds left in the turn. The number is negative if the turn takes longer than its minutes."""
        return 60 * turn.minutes - self._state.turn_s(clock.now())

    def _reply_s(self) -> float:
        """Expected seconds until the reply to a model call, or 0 if no model has replied in this session."""
        replied = [
            call.ended_at - call.started_at
            for call in self._state.spending.calls.values()
            if call.reply is not None and call.ended_at is not None and call.provider != MANUAL
        ]
        return statistics.median(replied) if replied else 0.0

    async def _await_replies(self, problem: str) -> None:
        """If model calls are in flight, wait for their replies and for the verdicts on their kernels.

        The search does not cancel calls, because providers bill canceled calls too. It does not start new calls.
        """
        self._context.awaiting_replies.add(problem)
        flying = self._state.spending.flying.values()
        if not any(call.site.problem == problem and call.provider != MANUAL for call in flying):
            return
        for _ in range(round(REPLIES_S / LOOK_S)):
            if self._context.ending is not None or self._host.is_at_rest(problem):
                return
            self._owed.end_late()
            await asyncio.sleep(LOOK_S)

    async def _measure_the_rest(self) -> None:
        """Run the problem's deferred work within the turn's limit. Wait while the search is paused or its budget is
        used up.
        """
        while True:
            if self._context.ending is None and not self._context.paused and not self._owed.busy:
                self._owed.start_any()
                if not self._owed.busy:
                    return
            self._owed.end_late()
            await asyncio.sleep(LOOK_S)
