"""Say how to resume a session whose engine has ended, with a higher limit if necessary."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from engine.session.budget import budget_of, elapsed_s, most_reserved_s
from engine.session.records.events import LARGER_LIMIT
from engine.session.records.requests import ChangeBudget
from engine.session.store import SessionPaths, SessionReader, SessionSummary
from tui.text.narration import turn_end_words
from tui.text.program import program
from tui.view.activity import unwritable
from tui.view.source import Limits, argument_of, limits_now, limits_of

if TYPE_CHECKING:
    from engine.session.state.session_state import SessionState
    from tui.view.model import Model
    from tui.view.results import Results


TOO_SHORT = "the rest is too short for another kernel"
"""Reason why a search ends before its minutes are used up."""

_LEAST_MORE_MINUTES = 2
"""Minimum number of minutes to add for a missing torch.compile time. On a slow machine, a time takes about a minute."""


def minutes_needed(minutes: float | None, search_s: float, *, by_time: bool) -> float | None:
    """Return the value that a new time limit must exceed, or None if a resume needs no new limit.

    ``minutes`` is the current limit, or None for no limit. ``search_s`` is the search time in seconds. ``by_time`` says
    whether the time budget ended the last engine run. An engine reserves a part of this budget for its final
    measurements.
    """
    if minutes is None:
        return None
    left_s = minutes * 60 - search_s
    if left_s > (most_reserved_s(minutes) if by_time else 0.0):
        return None
    return max(minutes, math.ceil((minutes - left_s / 60) * 10) / 10)  # Work in flight may have overrun the limit.


def suggested_minutes(needed: float, config_minutes: float) -> float:
    """Return the time limit to suggest for a resume: about ``config_minutes`` above ``needed``."""
    limit = needed + config_minutes
    return float(round(limit)) if config_minutes >= 1 else math.ceil(round(limit * 10, 6)) / 10


def more_minutes(model: Model) -> float | None:
    """Return the time limit that a resume must exceed, or None if a resume needs no new limit."""
    engine = model.state.engine
    by_time = engine is not None and engine.stopped_by_time
    return minutes_needed(model.minutes, model.search_seconds(), by_time=by_time)


def other_end(state: SessionState, rounds: int | None) -> str:
    """Return why a finished search ended before the limit ``rounds``, such as ``softmax: no proposer has a new idea``.
    In this case, more rounds might not help. Return "" if a problem reached this limit.
    """
    ended = ""
    for problem in state.problems.values():
        if problem.id in state.refused or state.is_pruned(problem.id):
            continue
        if rounds is None or (problem.rounds and problem.rounds[-1].number >= rounds):
            return ""
        turn_end = problem.turn_end if problem.turn_end != "done" else None
        if problem.finished is None and turn_end is None:
            return ""
        why = problem.finished or turn_end_words(state, problem.id, turn_end or "done")
        ended = ended or f"{problem.id}: {why}"
    return ended


def resume_command(model: Model) -> str:
    """Return the shell command that resumes the monitor's session, with the options that raise used-up limits."""
    engine, limits = model.state.engine, model.limits
    command = f"{program()} resume {model.source.argument}"
    rounds = " --rounds N" if model.state.finished else ""
    if (needed := more_minutes(model)) is not None:
        more = suggested_minutes(needed, model.source.limits.minutes or model.minutes or needed)
        return f"{command}{rounds} {_option('minutes', more)}"
    if rounds:
        return f"{command}{rounds}"
    if engine is None or engine.stopped != "budget":
        return command
    return f"{command} {_spendable(limits)}"


def option_to_resume(paths: SessionPaths, state: SessionState) -> str:
    """Return the options that the session needs to resume, such as ``--rounds N``, or "" if it needs none."""
    rounds = ["--rounds N"] if state.finished else []
    if (spent := minutes_spent(paths, state)) is not None:
        return " ".join([*rounds, _option("minutes", spent.suggested)])
    if rounds:
        return rounds[0]
    if state.engine is None or state.engine.stopped != "budget":
        return ""
    return _spendable(limits_of(paths))


class Spent(NamedTuple):
    """A used-up time limit in minutes.

    ``needed``: the value that a new limit must exceed. ``search_s``: the search time in seconds. ``suggested``: the
    new limit to suggest.
    """

    minutes: float
    needed: float
    search_s: float
    suggested: float


def minutes_spent(paths: SessionPaths, state: SessionState) -> Spent | None:
    """Return the used-up time limit, or None if time is left."""
    found = minutes_left(paths, state)
    if found is None or _limits_wait(paths, state):
        return None
    by_time = state.engine is not None and state.engine.stopped_by_time
    search_s = elapsed_s(state, state.last_moment(state.heard_at))
    needed = minutes_needed(found[0], search_s, by_time=by_time)
    return _spent(paths, found[0], needed, search_s) if needed is not None else None


def _spent(paths: SessionPaths, minutes: float, needed: float, search_s: float) -> Spent:
    return Spent(minutes, needed, search_s, suggested_minutes(needed, limits_of(paths).minutes or minutes))


def too_low_limit(paths: SessionPaths, state: SessionState, limits: ChangeBudget) -> str | None:
    """Say why a search would end at once under one of the new limits, or return None if all limits allow more work."""
    for name in ("minutes", "rounds", "dollars", "tokens", "calls"):
        limit = getattr(limits, name)
        if limit is None or (found := _USED_UP[name](paths, state, limit)) is None:
            continue
        return (
            f"{_option(name, limit)} is too low, because the search has {found.usage}. "
            f"Continue with: {program()} resume {argument_of(paths)} {_option(name, found.enough)}"
        )
    if limits.minutes is None and (spent := minutes_spent(paths, state)) is not None:
        others = [_option(name, value) for name in _USED_UP if (value := getattr(limits, name)) is not None]
        return spent_in_words(spent, " ".join([argument_of(paths), *others]))
    return None


class _UsedUp(NamedTuple):
    """What the search has used, in words, and a limit that allows more work."""

    usage: str
    enough: float


def _too_few_minutes(paths: SessionPaths, state: SessionState, minutes: float) -> _UsedUp | None:
    used_s = elapsed_s(state, state.last_moment(state.heard_at))
    spent = minutes_spent(paths, state)
    needed = spent.needed if spent is not None else math.ceil(used_s / 6) / 10
    if minutes > needed or (spent is None and minutes * 60 > used_s):
        return None
    return _UsedUp(f"used {used_s / 60:.1f} min", spent.suggested if spent is not None else _above(needed))


def _too_few_rounds(paths: SessionPaths, state: SessionState, rounds: float) -> _UsedUp | None:
    done = rounds_without_work(state, int(rounds))
    return _UsedUp(f"completed {done} round{'' if done == 1 else 's'}", _above(done)) if done is not None else None


def rounds_without_work(state: SessionState, rounds: int) -> int | None:
    """Return the number of completed rounds if the limit ``rounds`` does not allow more work, otherwise None.

    A search that has not finished may still have deferred work for the rounds that it has completed.
    """
    searched = [one for one in state.problems.values() if one.id not in state.refused and not state.is_pruned(one.id)]
    finished = [[round_.number for round_ in one.rounds if round_.finished_at is not None] for one in searched]
    done = min((max(numbers, default=0) for numbers in finished), default=0)
    if rounds > done or (rounds == done and not state.finished):
        return None
    return done


def _too_few_dollars(paths: SessionPaths, state: SessionState, dollars: float) -> _UsedUp | None:
    from tui.view.spend import money  # This import is slow, and only this error needs it.

    confirmed, most = state.spending.total.dollars, state.spending.committed.dollars
    used = most if most is not None else confirmed  # If a price is unknown, only the confirmed dollars count.
    if dollars > used:
        return None
    cents = math.ceil(round(used * 100, 6))
    return _UsedUp(f"used {money(used)}{_unconfirmed(used > confirmed)}", _above(cents / 100))


def _too_few_tokens(paths: SessionPaths, state: SessionState, tokens: float) -> _UsedUp | None:
    used = state.spending.committed.tokens
    if tokens > used:
        return None
    return _UsedUp(f"used {used:,} tokens{_unconfirmed(used > state.spending.total.tokens)}", _above(used))


def _too_few_calls(paths: SessionPaths, state: SessionState, calls: float) -> _UsedUp | None:
    used = state.spending.total.calls
    return _UsedUp(f"made {used:,} call{'' if used == 1 else 's'}", _above(used)) if calls <= used else None


def _unconfirmed(partly: bool) -> str:
    return ", including unconfirmed calls" if partly else ""


_USED_UP: dict[str, Callable[[SessionPaths, SessionState, float], _UsedUp | None]] = {
    "minutes": _too_few_minutes,
    "rounds": _too_few_rounds,
    "dollars": _too_few_dollars,
    "tokens": _too_few_tokens,
    "calls": _too_few_calls,
}
"""Functions by limit of ``ChangeBudget``. Each returns what the search has used, or None if a new limit allows more
work.
"""


def minutes_left(paths: SessionPaths, state: SessionState) -> tuple[float, float] | None:
    """Return the limit in minutes and the remaining seconds, or None if there is no limit."""
    limits = limits_of(paths)
    budget = budget_of(state, limits.minutes, limits.rounds or 0)
    return (
        None
        if budget.minutes is None
        else (budget.minutes, budget.left_s(elapsed_s(state, state.last_moment(state.heard_at))))
    )


def _limits_wait(paths: SessionPaths, state: SessionState) -> bool:
    """Return whether a request for new limits is pending."""
    with SessionReader(paths) as reader:
        return any(
            isinstance(sent.command, ChangeBudget) and sent.id not in state.handled for sent in reader.commands()
        )


def _spendable(limits: Limits) -> str:
    """Return the options that raise a used-up budget of dollars, tokens or calls. The user must give one of them."""
    names = [name for name in ("dollars", "tokens", "calls") if getattr(limits, name) is not None]
    return " or ".join(f"--{name} N" for name in names or ["minutes"])


def _option(name: str, limit: float) -> str:
    return f"--{name} {limit:.10g}" if isinstance(limit, float) else f"--{name} {limit}"


def _above(used: float) -> int:
    """Return a rounded limit above ``used``."""
    whole = math.floor(used)
    step: int = 10 ** max(0, len(str(whole)) - 2)
    return (whole // step + 1) * step


def words_to_time_compile(state: SessionState, paths: SessionPaths, results: Results) -> str:
    """Say how to get the missing torch.compile times after the end of the time budget, or return "" if no resumed
    engine would measure them.
    """
    engine, created = state.engine, limits_of(paths)
    if engine is None or not engine.stopped_by_time or state.takes_turns or not created.torch_compile:
        return ""
    missing = [
        row
        for row in results.problems
        if row.eager_ms is not None
        and "compile" not in state.problems[row.problem].baselines
        and not state.is_pruned(row.problem)
    ]
    if not missing:
        return ""
    used = max(limits_now(state, created).minutes or 0.0, results.seconds / 60)
    enough = float(math.ceil(used) + max(_LEAST_MORE_MINUTES, len(missing)))
    # At least as many minutes as the advice on how to continue the search, so that one command serves both.
    more = _option("minutes", max(enough, suggested_minutes(used, created.minutes or used)))
    return f"To time torch.compile: {program()} resume {argument_of(paths)} {more}"


def seeding_words(state: SessionState, paths: SessionPaths) -> list[str]:
    """Return lines that say which problems no proposer supports, why, and how to continue."""
    without = [one for one in unwritable(state) if one.best is None]
    lines = [f"{one.id}: none of the session's proposers can write a kernel: {one.cannot_write}" for one in without]
    if without:
        lines.append(f"Continue with: {program()} resume {argument_of(paths)}")
        lines += without[0].remedies
    return lines


def minutes_are_spent(spent: Spent) -> str:
    """Say that the time budget is used up, or that the rest is too short for another kernel."""
    used = f"{spent.search_s / 60:.1f}"
    if float(used) >= spent.minutes:
        return f"time budget used up ({spent.minutes:g} min)"
    return f"time budget used up ({used} of {spent.minutes:g} min; {TOO_SHORT})"


def spent_in_words(spent: Spent, argument: str) -> str:
    """Say that the time budget is used up, and how to continue. ``argument`` names the session on the command line."""
    more = _option("minutes", spent.suggested)
    return f"{minutes_are_spent(spent)}. Continue with: {program()} resume {argument} {more}"


def note_of(one: SessionSummary) -> str:
    """Return why a session's engine ended and, if the session needs a higher limit, how to resume it."""
    if one.state not in ("stopped", "died"):
        return one.note
    paths = SessionPaths.at(one.directory)
    return how_it_ended(paths, one.note, one.minutes, one.search_s, by_budget=one.by_budget)


def how_it_ended(paths: SessionPaths, said: str, minutes: float | None, search_s: float, *, by_budget: bool) -> str:
    """Say how a session's engine ended and, if the time budget is used up, how to continue.

    ``said`` describes the end. ``minutes`` is the limit that the user set, or None for the config's limit.
    ``by_budget`` says whether the time budget or a spending limit ended the engine.
    """
    minutes = minutes if minutes is not None else limits_of(paths).minutes
    by_time = by_budget and not said.endswith(LARGER_LIMIT)
    needed = minutes_needed(minutes, search_s, by_time=by_time)
    if minutes is None or needed is None:
        return said
    spent = spent_in_words(_spent(paths, minutes, needed, search_s), argument_of(paths))
    return spent if by_time else f"{said.partition(';')[0]}; {spent}"
