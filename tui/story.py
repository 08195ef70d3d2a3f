"""The log as a person wants to read it: what the engine says, and what its events mean, one line each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from engine import events as ev
from engine.events import Recorded
from engine.models.protocol import failure_words
from engine.ranking import round_of
from engine.state import ProblemState, SessionState
from engine.verdict import sizes_in_words
from tui import format as fmt
from tui.certainty import factor_words, interval_words, round_factor_words
from tui.waiting import WaitLines

LINES = 2000
SAME_FAILURE_S = 10.0
"""Many calls fail together: of one model and one kind of failure there is one line in this time."""
_MOVING = (ev.VerdictGiven, ev.HeatFinished, ev.NodePruned, ev.NodeRestored)
"""Events after which another kernel may be the best."""
Level = Literal["info", "good", "warning", "error"]


class Line(NamedTuple):
    """``time`` in Unix seconds. ``text`` may hold words of models and compilers."""

    time: float
    level: Level
    text: str


class Story(Struct):
    """Call ``note`` for every event, after the state has taken it in."""

    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=LINES))
    _best: dict[str, str | None] = field(default_factory=dict)
    _reached: dict[tuple[str, int], str] = field(default_factory=dict)
    """By problem and number of a finished round: the factor that its row shows."""
    _failed: dict[tuple[str, str], float] = field(default_factory=dict)
    _waits: WaitLines = field(default_factory=WaitLines)

    def note(self, state: SessionState, recorded: Recorded) -> bool:
        """Whether the event made a line."""
        event = recorded.event
        if type(event) not in _TOLD:
            return False
        told = [found] if (found := _tell(state, event)) is not None else []
        if isinstance(event, _MOVING):
            told += (moved := self._moved(state, event))
            if moved or isinstance(event, ev.HeatFinished) or _is_judged_again(state, event):
                told += self._rewritten(state, event)
        elif isinstance(event, ev.RoundFinished):
            self._reached[event.problem, event.round] = round_factor_words(state, event.problem, event.round)
        elif isinstance(event, ev.ModelCallFailed):
            told += self._repeated(state, event, recorded.time)
        elif (waiting := self._waits.line_of(recorded)) is not None:
            told.append(("info", waiting))
        if not told:  # as after nearly every verdict
            return False
        self.lines.extend(Line(recorded.time, *one) for one in told)
        return True

    def say(self, time: float, level: Level, text: str) -> None:
        """A line of the monitor's own, which no event tells."""
        self.lines.append(Line(time, level, text))

    def _repeated(self, state: SessionState, event: ev.ModelCallFailed, time: float) -> list[tuple[Level, str]]:
        """That a call is made again, and why. What is given up is the engine's to tell."""
        call = state.spending.calls.get(event.call)
        if call is None or event.wait_s is None:
            return []
        which = (call.model, event.failure)
        if time - self._failed.get(which, 0.0) < SAME_FAILURE_S:
            return []
        self._failed[which] = time
        next_one = f"attempt {event.attempt + 1} in {event.wait_s:.0f} s"
        return [("warning", f"{call.model}: {failure_words(event.failure)}, {next_one}: {event.message}")]

    def _rewritten(self, state: SessionState, event: ev.AnyEvent) -> list[tuple[Level, str]]:
        """One line for each earlier round whose best ``event`` shows in another light, as its row does from now on."""
        by = "since then"
        if isinstance(event, ev.HeatFinished):
            by = "by this heat"
        elif isinstance(event, ev.VerdictGiven):
            by = f"by the verdict on {event.variant}"
        lines: list[tuple[Level, str]] = []
        for (problem, number), before in self._reached.items():
            leader, factor = state.leader_of_round(problem, number), round_factor_words(state, problem, number)
            if factor == before or leader is None:
                continue
            self._reached[problem, number] = factor
            text = f"{problem}: {by} the best of round {number} is {leader.id} at {factor}, {before} before"
            lines.append(("info", text))
        return lines

    def _moved(self, state: SessionState, event: ev.AnyEvent) -> list[tuple[Level, str]]:
        """One line for each problem whose best kernel is another one since ``event``."""
        lines = []
        if isinstance(event, ev.VerdictGiven):
            variant = state.variants.get(event.variant)
            names = [variant.problem] if variant is not None else []
        else:
            names = [event.problem] if isinstance(event, ev.HeatFinished) else list(state.problems)
        for name in names:
            if (problem := state.problems.get(name)) is None or problem.best == self._best.get(name):
                continue
            before, self._best[name] = self._best.get(name), problem.best
            lines.append(_best_line(state, problem, event, before))
        return lines


def fold_with_story(recorded: Iterable[Recorded]) -> tuple[SessionState, Story]:
    """The state after ``recorded``, and its story."""
    state, story = SessionState(), Story()
    state.apply_all(recorded, partial(story.note, state), _TOLD)
    return state, story


def _is_judged_again(state: SessionState, event: ev.AnyEvent) -> bool:
    variant = state.variants.get(event.variant) if isinstance(event, ev.VerdictGiven) else None
    return variant is not None and variant.judged > 1


def _best_line(state: SessionState, problem: ProblemState, event: ev.AnyEvent, before: str | None) -> tuple[Level, str]:
    best = state.variants.get(problem.best) if problem.best is not None else None
    if best is None:
        return "warning", f"{problem.id}: no correct kernel is left"
    between = f" {words}" if (words := interval_words(best.verdict)) else ""
    what = f"{factor_words(best.verdict)}{between}, {fmt.milliseconds(best.kernel_ms)} ms"
    if isinstance(event, ev.HeatFinished):
        instead = f", not {before}" if before is not None else ""
        return "good", f"{problem.id}: side by side {best.id} is the fastest{instead}: new best {best.id}, {what}"
    if isinstance(event, ev.VerdictGiven) and best.id == event.variant:
        return "good", f"{problem.id}: new best {best.id}, {what}"
    return "info", f"{problem.id}: the best is now {best.id}, {what}"


def _tell(state: SessionState, event: ev.AnyEvent) -> tuple[Level, str] | None:
    teller = _TELLERS.get(type(event))
    return teller(state, event) if teller is not None else None


def _log_line(state: SessionState, event: ev.LogLine) -> tuple[Level, str]:
    return event.level, event.text


def _engine_started(state: SessionState, event: ev.EngineStarted) -> tuple[Level, str]:
    again = "again " if event.resumed else ""
    devices = ", ".join(device.name for device in event.devices)
    where = f" on {devices}; sandbox: {event.sandbox}" if devices else ""
    return "info", f"the engine started {again}(pid {event.pid}){where}"


def _engine_stopped(state: SessionState, event: ev.EngineStopped) -> tuple[Level, str]:
    level: Level = "error" if event.reason == "error" else "info"
    return level, f"the engine ended ({event.reason}): {event.message}"


def _refused(state: SessionState, event: ev.ProblemRefused) -> tuple[Level, str]:
    return "warning", f"{event.problem}: refused, {event.reason}"


def _baseline(state: SessionState, event: ev.BaselineMeasured) -> tuple[Level, str]:
    baseline = event.baseline
    if baseline.timing is None:
        which = "torch.compile" if baseline.which == "compile" else baseline.which
        return "warning", f"{event.problem}: no {which} baseline: {baseline.failure or 'unknown'}"
    which = "torch.compile" if baseline.which == "compile" else baseline.which
    if event.degenerate:
        return "warning", f"{event.problem}: degenerate, {event.degenerate} pass every check: a win here says nothing"
    note = "".join(f"; {words}" for words in (event.tightened, baseline.disturbance) if words)
    return "info", f"{event.problem}: {which} takes {fmt.milliseconds(baseline.timing.median_ms)} ms{note}"


def _round_finished(state: SessionState, event: ev.RoundFinished) -> tuple[Level, str]:
    reached = state.best_of_round(event.problem, event.round)
    round_ = round_of(state, event.problem, event.round)
    tried = round_ is not None and any(state.variants[name].was_judged for name in round_.variants)
    nothing = "no kernel of it is correct" if tried else "no kernel was tried"
    best = f"its best {round_factor_words(state, event.problem, event.round)}" if reached is not None else nothing
    timed = round_.standings if round_ is not None else ()
    if timed and (winner := state.variants.get(timed[0].variant)) is not None:
        best = f"fastest by heat {winner.id}, {factor_words(winner.verdict)}"
    names = ", ".join(one.variant for one in event.survivors)
    carried = f"carried on: {names}" if names else "nothing is carried on"
    return "info", f"{event.problem}: round {event.round} done, {best}; {carried}"


def _problem_finished(state: SessionState, event: ev.ProblemFinished) -> tuple[Level, str]:
    return "info", f"{event.problem}: finished, {event.reason}"


def _handled(state: SessionState, event: ev.CommandHandled) -> tuple[Level, str]:
    return ("info", f"by hand: {event.message}") if event.ok else ("warning", f"refused: {event.message}")


def _sizes_checked(state: SessionState, event: ev.SizesChecked) -> tuple[Level, str]:
    survives = bool(event.results) and all((one.speedup or 0.0) > 1.0 for one in event.results)
    words = event.note or sizes_in_words(event.results)
    return "good" if survives else "warning", f"{event.problem}: {event.variant} at other sizes: {words}"


def _judged(state: SessionState, event: ev.VerdictGiven) -> tuple[Level, str] | None:
    """A person waits for the verdict on a kernel of their own; of a new best there is a line anyway."""
    variant = state.variants.get(event.variant)
    if variant is None or variant.proposer != ev.BY_HAND or state.problems[variant.problem].best == variant.id:
        return None
    verdict = event.verdict
    if verdict.correct:
        return "info", f"{variant.problem}: {variant.id}, by hand: correct, {factor_words(verdict)}"
    return "warning", f"{variant.problem}: {variant.id}, by hand: {verdict.status.replace('_', ' ')}; {verdict.reason}"


_TELLERS: dict[type, Callable[[SessionState, Any], tuple[Level, str] | None]] = {
    ev.LogLine: _log_line,
    ev.EngineStarted: _engine_started,
    ev.EngineStopped: _engine_stopped,
    ev.ProblemRefused: _refused,
    ev.BaselineMeasured: _baseline,
    ev.RoundFinished: _round_finished,
    ev.ProblemFinished: _problem_finished,
    ev.SizesChecked: _sizes_checked,
    ev.CommandHandled: _handled,
    ev.VerdictGiven: _judged,
}
_TOLD = {*_TELLERS, *_MOVING, ev.ModelCallFailed, ev.DeviceAwaited, ev.DeviceFree}
"""Events that may make a line."""
