"""Estimate a search's progress, and the time until its end."""

from __future__ import annotations

from msgspec import Struct

from engine.session.state.session_state import ProblemState, SessionState
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

    ``of`` names the limit that the share refers to, such as ``rounds`` or ``time``. ``is_exact``: whether the time
    limit gives the end.
    """

    share: float
    of: str
    left_s: float | None
    is_exact: bool = False


class SteadyEnd:
    """The end of a search for display. Small changes of an estimated end do not move it until it has passed."""

    def __init__(self) -> None:
        self._end: float | None = None

    def at(self, now: float, left_s: float, *, is_exact: bool = False) -> float:
        """Return the end in Unix seconds, for a known or estimated end at ``left_s`` seconds from ``now``."""
        end = now + left_s
        if is_exact or self._end is None or self._end < now or abs(end - self._end) > max(MOVED_S, MOVED * left_s):
            self._end = end
        return self._end


def progress_of(model: Model) -> Progress | None:
    """Estimate the progress of a running search from the limit that it will reach first.

    A limit on minutes ends the search at a known time. The estimate assumes that rounds, turns, dollars, tokens and
    calls continue at their rate so far. The rate of rounds, dollars, tokens and calls counts up to their last increase,
    so that the estimate stays the same until the next increase. If the estimated end passes first, the rate counts up
    to now. Return None if the search is not running or has no limit.
    """
    if model.link.kind not in ("live", "stalled") or not model.opened:
        return None
    elapsed_s, limits = model.search_seconds(), model.limits
    shares = shares_done(model.state, limits, elapsed_s)
    if not shares:
        return None
    ends = {
        name: _end_s(model, name, share, elapsed_s)
        for name, share in shares.items()
        if name != TIME and share >= ENOUGH
    }
    if TIME in shares:
        ends[TIME] = (limits.minutes or 0.0) * 60
    of = max(shares, key=lambda name: shares[name])
    unknown = model.state.paused or model.state.stop_planned or model.state.held_up_at is not None
    if unknown or not ends:
        return Progress(shares[of], of, None)
    first = min(ends, key=lambda name: ends[name])
    return Progress(shares[of], of, max(0.0, ends[first] - elapsed_s), is_exact=first == TIME)


def _end_s(model: Model, name: str, share: float, elapsed_s: float) -> float:
    """Estimate the search time at which the search reaches the limit ``name``, in seconds.

    ``share`` is the limit's used share, and ``elapsed_s`` the search time now.
    """
    history = model.history
    since_s: float | None = None  # The share of an open turn increases all the time.
    if name == "rounds":
        share, since_s = _rounds_made(model.state, model.limits.rounds or 0), history.round_s
    elif name != "problems" and history.spent:
        since_s = history.spent[-1].seconds
    end_s = since_s / share if since_s is not None else 0.0
    return end_s if end_s > elapsed_s else elapsed_s / share


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
    if not (searched := _searched(state)):
        return 1.0
    return sum(map(_rounds_of, searched)) / (len(searched) * (rounds + 1))


def _rounds_made(state: SessionState, rounds: int) -> float:
    """Return the share of finished rounds in all rounds, finished in any problem or still to come, for their rate.

    Unlike ``_rounds_done``, this share is right for the rate if the search of some problems has ended.
    """
    made = sum(map(_rounds_of, state.problems.values()))
    left = sum(max(0, rounds + 1 - _rounds_of(problem)) for problem in _searched(state))
    return made / (made + left) if left else 1.0


def _searched(state: SessionState) -> list[ProblemState]:
    """Return the problems that the engine still searches."""
    return [
        problem
        for problem in state.problems.values()
        if problem.finished is None
        and problem.cannot_write is None
        and problem.id not in state.refused
        and not state.is_pruned(problem.id)
    ]


def _rounds_of(problem: ProblemState) -> int:
    """Return the number of finished rounds of a problem."""
    return sum(one.finished_at is not None for one in problem.rounds)


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
