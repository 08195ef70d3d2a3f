"""The monitor's log: one line per event that a user should notice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.records.model_calls import failure_words
from engine.session.records.other_sizes import sizes_in_words
from engine.session.records.verdict_text import disturbance, speedup_words
from engine.session.state.session_data import round_of
from engine.session.state.session_state import ProblemState, SessionState, VariantState
from tui.text import format as fmt
from tui.text.certainty import comparable_words, interval_words
from tui.text.narration import (
    Reported,
    devices_in_words,
    end_words,
    judged_again_words,
    overtaken_words,
    repeat_words,
    runoff_line,
    turn_line,
)
from tui.text.runoff_text import above_low_end, former_verdict_words, tie_words, why_new_best, why_no_star
from tui.text.same_code import twin_of
from tui.text.waiting import WaitLines

LINES = 2000
SAME_FAILURE_S = 10.0
"""Minimum seconds between two log lines about the same model and kind of failure, since calls often fail together."""
_MOVING = (ev.VerdictGiven, ev.RunoffFinished, ev.NodePruned, ev.NodeRestored)
"""Events that can change a problem's best kernel."""
Level = Literal["info", "good", "warning", "error"]


class Line(NamedTuple):
    """One line of the log. ``time`` is in Unix seconds; ``text`` may contain output from models and compilers."""

    time: float
    level: Level
    text: str


def engine_died(at: float, pid: int) -> Line:
    """Return the line for an engine that ended without a last event.

    ``at`` is the time of the engine's last heartbeat or event, in Unix seconds.
    """
    return Line(at, "error", f"the engine died (pid {pid})")


class _Reached(NamedTuple):
    """A finished round's leader, the speedup of its verdict, and its comparable speedup."""

    leader: str
    verdict: str
    shown: str


class Story(Struct):
    """The log's lines. Call ``note`` for every event, after the state has applied it."""

    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=LINES))
    _best: dict[str, Reported] = field(default_factory=dict)
    _reached: dict[tuple[str, int], _Reached] = field(default_factory=dict)
    """Each finished round's leader, by problem and round number."""
    _failed: dict[tuple[str, str], float] = field(default_factory=dict)
    _waits: WaitLines = field(default_factory=WaitLines)
    _running: int | None = None
    """The PID of the newest engine, or None after its last event."""
    _steered: tuple[str, int] = ("", 0)
    """If the last event was a prune or restore: its node, and the number of log lines about its effects."""

    def note(self, state: SessionState, recorded: Recorded) -> bool:
        """Add the event's lines to the log. Return whether there were any."""
        event = recorded.event
        if type(event) not in TOLD or (isinstance(event, ev.VerdictGiven) and not self._is_news(state, event)):
            return False
        told = [found] if (found := _tell(state, event)) is not None else []
        if isinstance(event, ev.EngineStarted):
            if self._running is not None:
                last = self.lines[-1].time if self.lines else recorded.time
                self.lines.append(engine_died(event.before or last, self._running))
            self._running = event.pid
        elif isinstance(event, ev.EngineStopped):
            self._running = None
        if isinstance(event, _MOVING):
            told += self._best_remains(state, event)
            told += (moved := self._moved(state, event))
            if moved or isinstance(event, ev.RunoffFinished) or _is_judged_again(state, event):
                told += self._rewritten(state, event)
        elif isinstance(event, ev.RoundFinished):
            self._reached[event.problem, event.round] = _reached(state, event.problem, event.round)
        elif isinstance(event, ev.ModelCallFailed):
            told += self._repeated(state, event, recorded.time)
        elif (waiting := self._waits.line_of(recorded)) is not None:
            told.append(("info", waiting))
        (node, consequences), self._steered = self._steered, ("", 0)
        if isinstance(event, ev.NodePruned | ev.NodeRestored):
            self._steered = event.node, len(told)
        if not told:  # most verdicts
            return False
        # The engine records a prune or restore just before its answer, but the answer names the cause.
        after = [self.lines.pop() for _ in range(consequences)] if _answers(event, node) else []
        self.lines.extend(Line(recorded.time, *one) for one in told)
        self.lines.extend(reversed(after))
        return True

    def _is_news(self, state: SessionState, event: ev.VerdictGiven) -> bool:
        """Return whether a verdict may need a line. Most of the 20,000 verdicts of a large session need none."""
        if (variant := state.variants.get(event.variant)) is None:
            return False
        problem = state.problems.get(variant.problem)
        moved = problem is not None and Reported.of(problem).is_news(self._before(problem.id))
        return moved or variant.judged > 1 or variant.proposer == ev.BY_HAND

    def _before(self, problem: str) -> Reported:
        return self._best.get(problem, Reported())

    def say(self, time: float, level: Level, text: str) -> None:
        """Add a line from the monitor itself."""
        self.lines.append(Line(time, level, text))

    def _repeated(self, state: SessionState, event: ev.ModelCallFailed, time: float) -> list[tuple[Level, str]]:
        """Report that a call will be retried, and why. The engine reports calls that it abandons."""
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
        """Report each finished round whose leader, or the leader's verdict, changed because of ``event``.

        The cause is a second verdict, a prune or restore, or a runoff after the round's end.
        """
        by = f"a verdict on {event.variant}" if isinstance(event, ev.VerdictGiven) else "a prune or restore"
        if isinstance(event, ev.RunoffFinished):
            by = "its last runoff"
        names = self._touched(state, event)
        lines: list[tuple[Level, str]] = []
        for (problem, number), before in self._reached.items():
            if problem not in names:
                continue
            now = _reached(state, problem, number)
            if now[:2] == before[:2] or not now.leader:
                continue
            self._reached[problem, number] = now
            was = f"{before.leader} at {before.shown}" if before.leader else "none"
            text = f"{problem}: best of round {number} is now {now.leader} at {now.shown} (was {was}), after {by}"
            lines.append(("info", text))
        return lines

    def _best_remains(self, state: SessionState, event: ev.AnyEvent) -> list[tuple[Level, str]]:
        """Report a runoff that did not change the best kernel although another kernel was first, with the reason."""
        if not isinstance(event, ev.RunoffFinished) or not event.standings or event.problem not in state.problems:
            return []
        now, before = Reported.of(state.problems[event.problem]), self._before(event.problem)
        if now.best in (None, event.standings[0].variant) or now.is_news(before):
            return []
        return [("info", runoff_line(event, state, before))]

    def _moved(self, state: SessionState, event: ev.AnyEvent) -> list[tuple[Level, str]]:
        """Report each problem whose best kernel changed, or separated from a tied kernel, because of ``event``."""
        lines = []
        for name in self._touched(state, event):
            if (problem := state.problems.get(name)) is None:
                continue
            now, before = Reported.of(problem), self._before(name)
            self._best[name] = now
            if now.is_news(before):
                lines.append(_best_line(state, problem, event, now.former(before)))
        return lines

    @staticmethod
    def _touched(state: SessionState, event: ev.AnyEvent) -> list[str]:
        """Return the problems whose best kernel may have changed because of ``event``, which is one of ``_MOVING``."""
        if isinstance(event, ev.VerdictGiven):
            variant = state.variants.get(event.variant)
            return [variant.problem] if variant is not None else []
        return [event.problem] if isinstance(event, ev.RunoffFinished) else list(state.problems)


def _reached(state: SessionState, problem: str, number: int) -> _Reached:
    leader = state.leader_of_round(problem, number)
    if leader is None:
        return _Reached("", "", "")
    return _Reached(leader.id, speedup_words(leader.verdict), comparable_words(state, leader))


def fold_with_story(recorded: Iterable[Recorded]) -> tuple[SessionState, Story]:
    """Apply the events, and return the resulting state and its log."""
    state, story = SessionState(), Story()
    state.apply_all(recorded, dict.fromkeys(TOLD, partial(story.note, state)))
    return state, story


def _answers(event: ev.AnyEvent, node: str) -> bool:
    """Return whether ``event`` is the answer to a request about ``node``."""
    return isinstance(event, ev.CommandHandled) and event.ok and event.node == node


def _is_judged_again(state: SessionState, event: ev.AnyEvent) -> bool:
    variant = state.variants.get(event.variant) if isinstance(event, ev.VerdictGiven) else None
    return variant is not None and variant.judged > 1


def _best_line(state: SessionState, problem: ProblemState, event: ev.AnyEvent, before: str | None) -> tuple[Level, str]:
    best = state.variants.get(problem.best) if problem.best is not None else None
    if best is None:
        if state.is_pruned(problem.id):
            return "info", f"{problem.id}: pruned"
        return "warning", f"{problem.id}: no correct kernel left"
    between = f" {words}" if (words := interval_words(best.verdict)) else ""
    what = f"{speedup_words(best.verdict)}{between}, {fmt.milliseconds(best.kernel_ms)} ms"
    if isinstance(event, ev.RunoffFinished):
        against = former_verdict_words(state.variants.get(before or ""), best)
        why = why_new_best(state, problem, before)
        verdict = f"verdict {what}{f' ({against})' if against else ''}{_fastest_words(state, event, best)}"
        if problem.tied_with is not None:
            return "info", f"{problem.id}: {tie_words(best.id, problem.tied_with)}: {why}; {verdict}"
        return "good", f"{problem.id}: new best {best.id}, {why}; {verdict}"
    if isinstance(event, ev.VerdictGiven) and best.id == event.variant:
        if overtaken := overtaken_words(state.variants.get(before or ""), best):
            return "info", f"{problem.id}: the best is now {best.id}: {what}; {overtaken}"
        why = above_low_end(state.variants.get(before or ""), best)
        what += f"; {why}" if why else ""
        if problem.tied_with is not None:
            return "info", f"{problem.id}: {tie_words(best.id, problem.tied_with)}: {what}"
        return "good", f"{problem.id}: new best {best.id}, {what}"
    since = f", after another verdict on {event.variant}" if isinstance(event, ev.VerdictGiven) else ""
    return "info", f"{problem.id}: the best is now {best.id}{since}: {what}"


def _fastest_words(state: SessionState, event: ev.RunoffFinished, best: VariantState) -> str:
    """If the runoff's first kernel did not become the best, name it and give the reason. Otherwise, return ""."""
    fastest = event.standings[0].variant if event.standings else best.id
    if fastest == best.id:
        return ""
    why = why_no_star(state, state.variants[fastest]) if fastest in state.variants else ""
    return f"; fastest: {fastest}{f' ({why})' if why else ''}"


def _tell(state: SessionState, event: ev.AnyEvent) -> tuple[Level, str] | None:
    teller = _TELLERS.get(type(event))
    return teller(state, event) if teller is not None else None


def _log_line(state: SessionState, event: ev.LogLine) -> tuple[Level, str]:
    return event.level, event.text


def _engine_started(state: SessionState, event: ev.EngineStarted) -> tuple[Level, str]:
    again = "again " if event.resumed else ""
    devices = devices_in_words(event.devices)
    where = f" on {devices}; sandbox: {event.sandbox}" if devices else ""
    return "info", f"the engine started {again}(pid {event.pid}){where}"


def _device_joined(state: SessionState, event: ev.DeviceJoined) -> tuple[Level, str]:
    return "good", f"{event.device.host} joined: {event.device.name}"


def _device_left(state: SessionState, event: ev.DeviceLeft) -> tuple[Level, str]:
    return "warning", f"lost {event.reason}"


def _engine_stopped(state: SessionState, event: ev.EngineStopped) -> tuple[Level, str]:
    level: Level = "error" if event.reason == "error" else "info"
    return level, f"engine: {event.message}"


def _refused(state: SessionState, event: ev.ProblemRefused) -> tuple[Level, str]:
    return "warning", f"{event.problem}: not searched: {event.reason}"


def _cannot_write(state: SessionState, event: ev.CannotWrite) -> tuple[Level, str]:
    if not event.reason:
        return "info", f"{event.problem}: a proposer can write its kernels now"
    return "warning", f"{event.problem}: no proposer can write its kernels, so seed your own: {event.reason}"


def _source_repeated(state: SessionState, event: ev.SourceRepeated) -> tuple[Level, str]:
    return "info", f"{event.problem}: {event.idea}: {repeat_words(event)}: not judged again"


def _baseline(state: SessionState, event: ev.BaselineMeasured) -> tuple[Level, str]:
    baseline = event.baseline
    which = "torch.compile" if baseline.which == "compile" else baseline.which
    if baseline.timing is None:
        return "warning", f"{event.problem}: no {which} baseline: {baseline.failure or 'unknown'}"
    if event.degenerate:
        return (
            "warning",
            f"{event.problem}: degenerate: {event.degenerate} pass every check, so speedups mean nothing here",
        )
    note = "".join(f"; {words}" for words in (event.tightened, disturbance(baseline)) if words)
    return "info", f"{event.problem}: {which} alone takes {fmt.milliseconds(baseline.timing.median_ms)} ms{note}"


def _round_finished(state: SessionState, event: ev.RoundFinished) -> tuple[Level, str]:
    round_ = round_of(state, event.problem, event.round)
    tried = round_ is not None and any(state.variants[name].was_judged for name in round_.variants)
    nothing = "no correct kernel" if tried else "no kernel judged"
    leader = state.leader_of_round(event.problem, event.round)
    best = f"its best {leader.id}, {comparable_words(state, leader)}" if leader is not None else nothing
    names = ", ".join(one.variant for one in event.selected)
    selected = f"selected: {names}" if names else "no kernel selected"
    return "info", f"{event.problem}: round {event.round} done, {best}; {selected}"


def _problem_finished(state: SessionState, event: ev.ProblemFinished) -> tuple[Level, str]:
    return "info", f"{event.problem}: finished, {end_words(state, event.problem, event.reason, keys=True)}"


def _turn(state: SessionState, event: ev.TurnStarted | ev.TurnEnded) -> tuple[Level, str]:
    return "info", turn_line(event, state)


def _handled(state: SessionState, event: ev.CommandHandled) -> tuple[Level, str]:
    return ("info", f"request: {event.message}") if event.ok else ("warning", f"refused: {event.message}")


def _sizes_checked(state: SessionState, event: ev.SizesChecked) -> tuple[Level, str]:
    survives = bool(event.results) and all((one.speedup or 0.0) > 1.0 for one in event.results)
    words = event.note or sizes_in_words(event.results)
    return "good" if survives else "warning", f"{event.problem}: {event.variant} at other sizes: {words}"


def _judged(state: SessionState, event: ev.VerdictGiven) -> tuple[Level, str] | None:
    """Report a repeated verdict, or the verdict on a kernel that the user wrote. A new best kernel gets its own line.

    If the engine chose to repeat the evaluation, its own log line gives the reason.
    """
    variant = state.variants.get(event.variant)
    if variant is not None and not event.why and (again := judged_again_words(variant)):
        return "info", f"{variant.problem}: {variant.id} {again}"
    if variant is None or variant.proposer != ev.BY_HAND or state.problems[variant.problem].best == variant.id:
        return None
    verdict = event.verdict
    if (twin := twin_of(state, variant)) is not None:
        same = f"same machine code as {twin.id} ({comparable_words(state, twin)})"
        return "info", f"{variant.problem}: seeded {variant.id}: correct, {same}"
    if verdict.correct:
        return "info", f"{variant.problem}: seeded {variant.id}: correct, {speedup_words(verdict)}"
    return "warning", f"{variant.problem}: seeded {variant.id}: {verdict.status.replace('_', ' ')}; {verdict.reason}"


_TELLERS: dict[type, Callable[[SessionState, Any], tuple[Level, str] | None]] = {
    ev.LogLine: _log_line,
    ev.EngineStarted: _engine_started,
    ev.EngineStopped: _engine_stopped,
    ev.DeviceJoined: _device_joined,
    ev.DeviceLeft: _device_left,
    ev.ProblemRefused: _refused,
    ev.CannotWrite: _cannot_write,
    ev.SourceRepeated: _source_repeated,
    ev.BaselineMeasured: _baseline,
    ev.RoundFinished: _round_finished,
    ev.ProblemFinished: _problem_finished,
    ev.TurnStarted: _turn,
    ev.TurnEnded: _turn,
    ev.SizesChecked: _sizes_checked,
    ev.CommandHandled: _handled,
    ev.VerdictGiven: _judged,
}
TOLD = frozenset({*_TELLERS, *_MOVING, ev.ModelCallFailed, ev.DeviceAwaited, ev.DeviceFree})
"""Events that can add a log line."""
