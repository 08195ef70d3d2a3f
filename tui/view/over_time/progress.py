"""Estimate a search's progress, and the time until its end."""

from __future__ import annotations

from msgspec import Struct

from engine.session.state.session_state import SessionState
from tui.view.model import Model
from tui.view.source import Limits

TIME = "time"
"""Name of the limit on minutes, which ends the search at a known time."""
ENOUGH = 0.05
"""Minimum used share of a limit at which ``progress_of`` estimates when the search will reach the limit."""
MOVED, MOVED_S = 0.1, 60.0
"""Changes of the estimated end that a ``SteadyEnd`` ignores: up to a share of the remaining time, or up to a number of
seconds.
"""


class Progress(Struct, frozen=True):
    """The share of the search that is done, from 0 to 1, and the estimated seconds until its end, if known.

    ``of`` names the limit that the share refers to, such as ``rounds`` or ``time``.
    """

    share: float
    of: str
    left_s: float | None


class SteadyEnd:
    """The estimated end of a search for display. Small changes of the estimate do not move it."""

    def __init__(self) -> None:
        self._end: float | None = None

    def at(self, now: float, left_s: float) -> float:
        """Return the end in Unix seconds, for an estimate of ``left_s`` seconds from ``now``."""
        end = now + left_s
        if self._end is None or abs(end - self._end) > max(MOVED_S, MOVED * left_s):
            self._end = end
        return self._end


def progress_of(model: Model) -> Progress | None:
    """Estimate the progress of a running search from the limit that it will reach first.

    A limit on minutes ends the search at a known time. The estimate assumes that rounds, turns, dollars, tokens and
    calls continue at their rate so far. The rate of rounds, dollars, tokens and calls counts up to their last increase,
    so that the estimate stays the same until the next one. Return None if the search is not running or has no limit.
    """
    if model.link.kind not in ("live", "stalled") or not model.opened:
        return None
    elapsed_s, limits = model.search_seconds(), model.limits
    shares = shares_done(model.state, limits, elapsed_s)
    if not shares:
        return None
    left = [
        max(0.0, _since_s(model, name, elapsed_s) / share - elapsed_s)
        for name, share in shares.items()
        if name != TIME and share >= ENOUGH
    ]
    if TIME in shares:
        left.append(max(0.0, (limits.minutes or 0.0) * 60 - elapsed_s))
    of = max(shares, key=lambda name: shares[name])
    unknown = model.state.paused or model.state.stop_planned or model.state.held_up_at is not None
    return Progress(shares[of], of, None if unknown else min(left, default=None))


def _since_s(model: Model, name: str, elapsed_s: float) -> float:
    """Return the search time at which the used share of the limit ``name`` last increased, in seconds."""
    if name == "problems":  # The share of an open turn increases all the time.
        return elapsed_s
    history = model.history
    at_s = history.round_s if name == "rounds" else history.spent[-1].seconds if history.spent else None
    return min(elapsed_s, at_s) if at_s is not None else elapsed_s


def shares_done(state: SessionState, limits: Limits, elapsed_s: float) -> dict[str, float]:
    """Return the used share of each limit, from 0 to 1, by the limit's name.

    If problems take turns, ``problems`` is the share of finished turns, plus the finished part of the open turn.
    Otherwise, ``rounds`` is the share of finished rounds in the problems that the engine still searches. ``elapsed_s``
    is the search time. The result omits limits that are not set.
    """
    spend = state.spending.total
    minutes_s = limits.minutes * 60 if limits.minutes is not None else None
    used = {
        "dollars": _share(spend.dollars, limits.dollars),
        "tokens": _share(spend.tokens, limits.tokens),
        "calls": _share(spend.calls, limits.calls),
        "problems": _turns_done(state, elapsed_s) if state.takes_turns else None,
        "rounds": _rounds_done(state, limits.rounds) if not state.takes_turns else None,
        TIME: _share(elapsed_s, minutes_s),
    }
    return {name: max(0.0, min(1.0, one)) for name, one in used.items() if one is not None}


def _share(used: float, limit: float | None) -> float | None:
    return used / limit if limit else None


def _rounds_done(state: SessionState, rounds: int | None) -> float | None:
    """Return the share of finished rounds in the problems that the engine still searches. Return 1 if the search of
    every problem has ended.
    """
    if not rounds or not state.problems:
        return None
    searched = [
        problem
        for problem in state.problems.values()
        if problem.finished is None
        and problem.cannot_write is None
        and problem.id not in state.refused
        and not state.is_pruned(problem.id)
    ]
    if not searched:
        return 1.0
    done = sum(one.finished_at is not None for problem in searched for one in problem.rounds)
    return done / (len(searched) * (rounds + 1))


def _turns_done(state: SessionState, elapsed_s: float) -> float | None:
    """Return the share of finished turns, or None if there are no problems.

    An open turn adds the share of its minutes that it has used.
    """
    phases = list(state.phases().values())
    if not phases:
        return None
    done = float(phases.count("done"))
    if (turn := state.turn) is not None and "running" in phases:
        is_extra = state.problems[turn.problem].turns > 1
        now_s = turn.stopped_s if turn.stopped_s is not None else elapsed_s
        part = _share(max(0.0, now_s - turn.began_s), 60 * turn.minutes) or 0.0
        done += 1.0 if is_extra else min(1.0, part)
    return done / len(phases)
