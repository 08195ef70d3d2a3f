"""What it takes to go on with a session that no engine works on: nothing, or a larger limit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.session import SessionPaths
from tui.program import program
from tui.source import argument_of, limits_of

if TYPE_CHECKING:
    from tui.model import Model

_KEPT_BACK = 0.1
"""An engine ends a little before its minutes do: it keeps back what the last measurements may take."""


def minutes_needed(minutes: float | None, search_s: float, *, by_budget: bool) -> float | None:
    """More than how many minutes a resume needs to do anything; None where some of ``minutes`` (None: no limit) are
    left. ``search_s``: seconds of search so far; ``by_budget``: whether its budget ended the last engine."""
    if minutes is None:
        return None
    left_s = minutes * 60 - search_s
    if left_s > (_KEPT_BACK * minutes * 60 if by_budget else 0.0):
        return None
    return max(minutes, math.ceil((minutes - left_s / 60) * 10) / 10)  # work under way may have taken more


def more_minutes(model: Model) -> float | None:
    """The same of the session that a monitor shows."""
    engine = model.state.engine
    by_budget = engine is not None and engine.stopped == "budget"
    return minutes_needed(model.minutes, model.search_seconds(), by_budget=by_budget)


def resume_command(model: Model) -> str:
    """The shell's command that goes on with the session that a monitor shows, with the limit that it needs raised."""
    engine, limits = model.state.engine, model.limits
    command = f"{program()} resume {model.source.argument}"
    if (needed := more_minutes(model)) is not None:
        return f"{command} {_more(needed)}"
    if engine is None or engine.stopped != "budget":
        return command
    spendable = [name for name in ("dollars", "tokens", "calls") if getattr(limits, name) is not None]
    return f"{command} {' or '.join(f'--{name} N' for name in spendable or ['minutes'])}"


def _more(needed: float) -> str:
    return f"--minutes N (more than {needed:g})"


def minutes_are_spent(minutes: float) -> str:
    """That a limit is reached."""
    return f"its {minutes:g} minute{' is' if minutes == 1 else 's are'} spent"


def spent_in_words(minutes: float, needed: float, argument: str) -> str:
    """That ``minutes`` are spent, and what goes on. ``argument``: what names the session on the command line."""
    return f"{minutes_are_spent(minutes)}; go on with: {program()} resume {argument} {_more(needed)}"


def how_it_ended(paths: SessionPaths, said: str, minutes: float | None, search_s: float, *, by_budget: bool) -> str:
    """``said``, which is how a session's engine ended, and what goes on where its minutes are spent. ``minutes``: the
    limit that a person set, None where that of its config holds."""
    minutes = minutes if minutes is not None else limits_of(paths).minutes
    needed = minutes_needed(minutes, search_s, by_budget=by_budget)
    if minutes is None or needed is None:
        return said
    spent = spent_in_words(minutes, needed, argument_of(paths))
    return spent if by_budget else f"{said.partition(';')[0]}, and {spent}"
