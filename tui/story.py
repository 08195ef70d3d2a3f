"""The log as a person wants to read it: what the engine says, and what its events mean, one line each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from engine import events as ev
from engine.events import Recorded
from engine.state import SessionState
from engine.verdict import sizes_in_words
from tui import format as fmt

LINES = 2000
Level = Literal["info", "good", "warning", "error"]


class Line(NamedTuple):
    """``time`` in Unix seconds. ``text`` may hold words of models and compilers."""

    time: float
    level: Level
    text: str


@dataclass(slots=True)
class Story:
    """Call ``note`` for every event, after the state has taken it in."""

    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=LINES))
    _best: dict[str, str] = field(default_factory=dict)

    def note(self, state: SessionState, recorded: Recorded) -> bool:
        """Whether the event made a line."""
        told = _tell(state, recorded.event) or self._new_best(state, recorded.event)
        if told is not None:
            self.lines.append(Line(recorded.time, *told))
        return told is not None

    def _new_best(self, state: SessionState, event: ev.AnyEvent) -> tuple[Level, str] | None:
        if not isinstance(event, ev.VerdictGiven) or (variant := state.variants.get(event.variant)) is None:
            return None
        problem = state.problems.get(variant.problem)
        if problem is None or problem.best != variant.id or self._best.get(problem.id) == variant.id:
            return None
        self._best[problem.id] = variant.id
        what = f"{fmt.speedup(variant.speedup)}, {fmt.milliseconds(variant.kernel_ms)} ms"
        return "good", f"{problem.id}: new best {variant.id}, {what}"


def fold_with_story(recorded: Iterable[Recorded]) -> tuple[SessionState, Story]:
    """The state after ``recorded``, and its story."""
    state, story = SessionState(), Story()
    apply, note = state.apply, story.note
    for one in recorded:
        apply(one)
        if type(one.event) is not ev.VariantStage:
            note(state, one)
    return state, story


def _tell(state: SessionState, event: ev.AnyEvent) -> tuple[Level, str] | None:
    teller = _TELLERS.get(type(event))
    return teller(state, event) if teller is not None else None


def _log_line(state: SessionState, event: ev.LogLine) -> tuple[Level, str]:
    return event.level, event.text


def _engine_started(state: SessionState, event: ev.EngineStarted) -> tuple[Level, str]:
    again = "again " if event.resumed else ""
    devices = ", ".join(device.name for device in event.devices)
    return "info", f"the engine started {again}(pid {event.pid}) on {devices}; sandbox: {event.sandbox}"


def _engine_stopped(state: SessionState, event: ev.EngineStopped) -> tuple[Level, str]:
    level: Level = "error" if event.reason == "error" else "info"
    return level, f"the engine ended ({event.reason}): {event.message}"


def _refused(state: SessionState, event: ev.ProblemRefused) -> tuple[Level, str]:
    return "warning", f"{event.problem}: refused, {event.reason}"


def _baseline(state: SessionState, event: ev.BaselineMeasured) -> tuple[Level, str]:
    baseline = event.baseline
    if baseline.timing is None:
        return "warning", f"{event.problem}: no {baseline.which} baseline: {baseline.failure or 'unknown'}"
    return "info", f"{event.problem}: {baseline.which} takes {fmt.milliseconds(baseline.timing.median_ms)} ms"


def _round_finished(state: SessionState, event: ev.RoundFinished) -> tuple[Level, str]:
    best = state.best_of_round(event.problem, event.round)
    carried = ", ".join(one.variant for one in event.survivors) or "nothing"
    return "info", f"{event.problem}: round {event.round} done, its best {fmt.speedup(best)}; carried on: {carried}"


def _problem_finished(state: SessionState, event: ev.ProblemFinished) -> tuple[Level, str]:
    return "info", f"{event.problem}: finished, {event.reason}"


def _handled(state: SessionState, event: ev.CommandHandled) -> tuple[Level, str]:
    return ("info", f"by hand: {event.message}") if event.ok else ("warning", f"refused: {event.message}")


def _sizes_checked(state: SessionState, event: ev.SizesChecked) -> tuple[Level, str]:
    survives = bool(event.results) and all((one.speedup or 0.0) > 1.0 for one in event.results)
    words = event.note or sizes_in_words(event.results)
    return "good" if survives else "warning", f"{event.problem}: {event.variant} at other sizes: {words}"


_TELLERS: dict[type, Callable[[SessionState, Any], tuple[Level, str]]] = {
    ev.LogLine: _log_line,
    ev.EngineStarted: _engine_started,
    ev.EngineStopped: _engine_stopped,
    ev.ProblemRefused: _refused,
    ev.BaselineMeasured: _baseline,
    ev.RoundFinished: _round_finished,
    ev.ProblemFinished: _problem_finished,
    ev.SizesChecked: _sizes_checked,
    ev.CommandHandled: _handled,
}
