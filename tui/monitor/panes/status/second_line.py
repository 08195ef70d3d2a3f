"""The second status line: a notice, the current activity, or every problem's best speedup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from textual.strip import Strip

from engine.session.records.verdict_text import speedup_words
from engine.session.state.session_state import ProblemState
from tui.monitor.panes.lines import EMPTY, Part, line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.certainty import interval_words
from tui.text.glyphs import not_judged_words
from tui.text.program import program
from tui.text.sanitize import one_line
from tui.view.activity import (
    activity_of,
    baseline_beside,
    final_measurement_of,
    overrun_of,
    owed_of,
    reopening_of,
    startup_of,
    waiting_of,
)
from tui.view.model import Model
from tui.view.next_steps import more_minutes, resume_command

TABLE_HINT = "2: table"
"""Hint for the key that shows the scoreboard, on screens without room for it."""
NAME_MIN = 9
"""Minimum width of a problem's name in the line of best speedups, in cells."""


class Notice(NamedTuple):
    """A message that needs the user's attention. ``failed`` is false for a normal end of the search.

    ``asides``: further sentences, for screens with room for them.
    """

    text: str
    failed: bool
    asides: tuple[str, ...] = ()


def notice_of(model: Model) -> Notice | None:
    """Return a notice of what happened and what the user should do, or None if all is well."""
    link, engine = model.link, model.state.engine
    resume = f"Press R to resume (or: {resume_command(model)})"
    if model.engine == "gone":
        ends = f" The engine (pid {link.pid}) ends within a minute." if link.pid is not None else ""
        where = one_line(model.source.argument, 200)
        moved = f"SESSION MOVED OR DELETED. Reopen with: {program()} attach DIRECTORY."
        return Notice(f"{moved}{ends} Old location: {where}.", True)
    if model.trouble is not None:
        return Notice(one_line(model.trouble), True)
    if not model.opened:
        return None
    if model.engine == "stalled":
        return Notice(f"ENGINE STALLED: {one_line(link.message)}", True)
    again = "Press R to resume."
    more = "Press M to raise the limit and resume."
    if model.source.read_only:
        resume = again = more = f"Resume: {resume_command(model)}"
    elif more_minutes(model) is not None:
        resume = again = "The time budget is used up: press M to raise it and resume."
    if model.engine == "died" and engine is not None:
        return Notice(f"ENGINE DIED (pid {engine.pid}). {resume}", True)
    if model.engine == "ended early":
        return Notice(f"ENGINE ENDED EARLY: {one_line(link.message, 160)} {resume}", True)
    if model.engine == "never ran":
        return Notice(f"No engine has run in this session yet. {resume}", False)
    if model.engine != "stopped" or engine is None:
        return None
    asides = (*_why_early(model), *_resumed_words(model))
    if engine.stopped == "budget":
        return Notice(f"Budget used up. {more}", False, asides)
    if engine.stopped == "stopped":
        return Notice(f"Stopped on request. {again}", False, asides)
    if engine.stopped == "waiting":
        return Notice(f"Stopped: waiting only for replies by hand. Press I to answer prompts. {again}", False)
    if engine.stopped == "signal":
        # The message begins with words such as "stopped by SIGTERM".
        how = one_line(engine.message.partition(";")[0], 160)
        return Notice(f"{how[:1].upper()}{how[1:]}. {again}", False, asides)
    return Notice(f"ENGINE FAILED ({engine.stopped}). {again} {one_line(engine.message, 160)}", True)


def _resumed_words(model: Model) -> Iterator[str]:
    """Yield a sentence that says with how many of the kernels that are not judged a resume continues, if any."""
    left = model.state.left_to_resume()
    if left:
        of_all = "" if left == model.state.not_judged() else f"{left} of "
        yield f"A resume continues with {of_all}the {not_judged_words(model.state)}."


def _why_early(model: Model) -> Iterator[str]:
    """Yield why the search ended before its time limit, unless a spending limit ended it."""
    engine, minutes = model.state.engine, model.minutes
    if engine is None or not engine.stopped_by_time or minutes is None:
        return
    left_s = 60 * minutes - model.search_seconds()
    if left_s >= 1:
        yield f"The last {fmt.duration(left_s)} were too short for another kernel."


def news_of(model: Model) -> str | None:
    """Return the current activity when no kernel is running, such as the start, a busy device, or the end."""
    state, limits = model.state, model.source.limits
    if state.pause_kept and model.link.kind in ("live", "stalled"):
        unpause = "" if model.source.read_only else " Press P to unpause."
        return f"The search was paused before its engine was interrupted.{unpause}"
    known = (
        overrun_of(model)
        or waiting_of(model)
        or final_measurement_of(model)
        or startup_of(state)
        or reopening_of(state)
        or owed_of(state, limits)
    )
    known = known or baseline_beside(model)
    if known is None and model.state.variants:
        return None
    said = activity_of(model)
    return f"{said[0].upper()}{said[1:]} …" if said is not None else None


def bests_line(model: Model, palette: Palette, width: int) -> Strip:
    """Return every problem's best speedup in one line, for screens without room for the scoreboard."""
    problems = list(model.state.problems.values())
    names = [problem.id for problem in problems]
    whole = line(*_bests(model, problems, names, palette, intervals=True))
    if whole.cell_length <= width:
        hinted = Strip.join([whole, line((TABLE_HINT, palette.dim))])
        return hinted if hinted.cell_length <= width else whole
    for shown in range(len(problems), 0, -1):  # Show fewer problems, since a cut figure would mislead.
        left = f"+{len(problems) - shown}" if shown < len(problems) else "  "
        figures = line(*_bests(model, problems[:shown], [""] * shown, palette, intervals=False), left)
        room = (width + 2 * left.isspace() - figures.cell_length) // shown
        if room >= NAME_MIN:
            cut = fmt.fit_apart(names, room)[:shown]
            parts = _bests(model, problems[:shown], cut, palette, intervals=False)
            return line(*parts, (left, palette.dim)).crop(0, width)
    return EMPTY


def _bests(
    model: Model, problems: Sequence[ProblemState], names: Sequence[str], palette: Palette, *, intervals: bool
) -> Iterator[Part]:
    """Yield the problems' names and best speedups. ``intervals`` adds 95% intervals."""
    yield " "
    for problem, name in zip(problems, names, strict=True):
        verdict = model.verdict_of_best(problem)
        reached = verdict.speedup if verdict is not None else None
        yield name, palette.dim
        yield f" {speedup_words(verdict)} ", palette.best if reached is not None and reached > 1 else palette.text
        yield f"{interval_words(verdict)}  " if intervals and interval_words(verdict) else " ", palette.dim
