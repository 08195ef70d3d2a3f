"""Draw a headless search's live table: each problem's progress and best kernel."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from engine.config.tolerance import tolerance_caption
from engine.session.budget import elapsed_s
from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.records.speedup_text import interval
from engine.session.records.verdict_text import speedup_words
from engine.session.state.session_state import ProblemState, SessionState
from engine.session.store import SessionPaths
from tui.console.tables import columns
from tui.text.format import clock, milliseconds
from tui.text.narration import BEST_SO_FAR, Reported, line_of
from tui.text.waiting import WaitLines, held_in_words
from tui.view.activity import ENGINE_STARTS, kernels_at_work, owed_of, startup_of
from tui.view.over_time.progress import shares_done
from tui.view.prompts import PromptLines
from tui.view.source import limits_now, limits_of

_SAID = (
    ev.ProblemRefused,
    ev.CannotWrite,
    ev.ProblemFinished,
    ev.TurnEnded,
    ev.LogLine,
    ev.CommandHandled,
    ev.EngineStarted,
    ev.EngineStopped,
)
REDRAW_S = 0.25
DONE_ROWS = 10
"""Maximum number of rows for problems whose turn has ended. In a session with turns, waiting problems have no row."""


class LiveTable:
    """A ``View`` that redraws a table in place. Important lines scroll above the table.

    ``engine_now`` returns the current time by the engine's clock.
    """

    def __init__(
        self, minutes: float | None, rounds: int, paths: SessionPaths, engine_now: Callable[[], float] = time.time
    ) -> None:
        self._engine_now = engine_now
        self._limits = replace(limits_of(paths), minutes=minutes, rounds=rounds)
        self._console = Console(highlight=False, markup=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()
        self._best: dict[str, Reported] = {}
        self._waits = WaitLines()
        self._prompts = PromptLines(paths)
        self._drawn_at = 0.0
        self._verdicts_before: int | None = None
        self._began = time.time()

    def recorded(self, one: Recorded, state: SessionState) -> None:
        line = line_of(one.event, state, self._best)
        if line is not None and (isinstance(one.event, _SAID) or _is_news(one.event, line, state)):
            self._console.print(Text(line))
        if (waiting := self._waits.line_of(one)) is not None:
            self._console.print(Text(waiting))

    def tick(self, state: SessionState) -> None:
        if self._verdicts_before is None:
            self._verdicts_before = state.verdicts
        if (line := self._prompts.lasting(state, time.time())) is not None:
            self._console.print(Text(line))
        if time.monotonic() - self._drawn_at >= REDRAW_S:
            self._drawn_at = time.monotonic()
            self._live.update(self._screen(state), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(Text(text, style="bold"))

    def close(self) -> None:
        self._live.stop()

    def _screen(self, state: SessionState) -> RenderableType:
        figures = ("round", "best ms", "speedup", "95%", "verdicts")
        table = columns("problem", *figures, "", right=figures)
        for name in _rows(state):
            if name in state.problems and name not in state.refused:
                table.add_row(*_row(state, state.problems[name]))
        caption = tolerance_caption(self._limits.tolerance)
        if state.takes_turns:
            counts = Counter(state.phases().values())
            caption = f"{counts['done']} done, {counts['running']} running, {counts['waiting']} waiting; {caption}"
        return Group(table, Text(caption, style="dim"), self._status(state))

    def _status(self, state: SessionState) -> RenderableType:
        spent = elapsed_s(state, self._engine_now())
        minutes = max(1 / 60, (time.time() - self._began) / 60)
        rate = (state.verdicts - (self._verdicts_before or 0)) / minutes
        words = "paused" if state.paused else owed_of(state, self._limits) or _at_work(state)
        if state.held_up_at is not None and (wait := next(iter(state.waits.values()), None)) is not None:
            words = f"waiting for the device: {held_in_words(wait)}"
        if state.died:  # A new engine has not recorded its start yet.
            words = ENGINE_STARTS
        grid = Table.grid(padding=(0, 1))
        limits = limits_now(state, self._limits)
        limit = f" of {clock(limits.minutes * 60)}" if limits.minutes is not None else ""
        done = max(shares_done(state, limits, spent).values(), default=0.0)
        text = Text(f"{clock(spent)}{limit}  {state.verdicts} verdicts, {rate:.0f}/min  {words}")
        grid.add_row(ProgressBar(total=1.0, completed=done, width=24), text)
        return grid


def _at_work(state: SessionState) -> str:
    """Count the kernels in progress. While no kernel is built or timed, name the step of the engine's startup."""
    if any(one.stage not in ("queued", "waiting") for one in state.at_work()):
        return kernels_at_work(state)
    return startup_of(state) or kernels_at_work(state)


def _is_news(event: ev.AnyEvent, line: str, state: SessionState) -> bool:
    """Return whether ``line`` reports a new best kernel or a repeated verdict."""
    if not isinstance(event, ev.VerdictGiven):
        return False
    return f", {BEST_SO_FAR}" in line or (not event.why and bool(state.variants[event.variant].earlier))


def _rows(state: SessionState) -> list[str]:
    """Return the problems to show: all problems or, if they take turns, the running problem and the problems whose
    turns ended last.
    """
    if not state.takes_turns:
        return list(state.problems)
    phases = state.phases()
    done = [name for name, phase in phases.items() if phase == "done" and name not in state.refused]
    done.sort(key=lambda name: state.problems[name].turn_ended_at)
    return [*done[-DONE_ROWS:], *(name for name, phase in phases.items() if phase == "running")]


def _row(state: SessionState, problem: ProblemState) -> list[RenderableType]:
    best = state.variants[problem.best] if problem.best is not None else None
    verdict = best.verdict if best is not None else None
    return [
        problem.id,
        str(problem.rounds[-1].number) if problem.rounds else "-",
        milliseconds(best.kernel_ms if best is not None else None),
        speedup_words(verdict),
        interval(verdict.speedup_low, verdict.speedup_high) if verdict is not None else "-",
        str(sum(one.was_judged for one in state.variants_of(problem.id))),
        Text(_remark(state, problem), style="dim"),
    ]


def _remark(state: SessionState, problem: ProblemState) -> str:
    if state.is_pruned(problem.id):
        return "pruned"
    if "eager" not in problem.baselines:
        return problem.finished or "opening"
    return problem.finished or ("needs a seeded kernel" if problem.cannot_write and problem.best is None else "")
