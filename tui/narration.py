"""An event as one plain line. Pure."""

from __future__ import annotations

from engine import events as ev
from engine.events import AnyEvent
from engine.proposers.protocol import CATEGORY_NAMES
from engine.state import SessionState
from engine.verdict import sizes_in_words
from tui.certainty import factor_words
from tui.format import milliseconds
from tui.sanitize import one_line

_REASON_CHARS = 160


def line_of(event: AnyEvent, state: SessionState, best: dict[str, str | None]) -> str | None:
    """What to say of ``event``, which ``state`` holds already, or None. ``best`` remembers what was said of each."""
    match event:
        case ev.EngineStarted():
            devices = ", ".join(device.name for device in event.devices)
            where = f" on {devices}; isolation: {event.sandbox}" if devices else ""
            return f"engine {event.pid} {'resumed' if event.resumed else 'started'}{where}"
        case ev.ProblemRefused():
            return f"{event.problem}: not searched: {one_line(event.reason)}"
        case ev.BaselineMeasured():
            return _baseline(event)
        case ev.RoundStarted():
            parents = ", ".join(one.variant for one in event.parents)
            return f"{event.problem}: round {event.round}" + (f" from {parents}" if parents else ", first kernels")
        case ev.IdeaProposed():
            kind = one_line(state.ideas[event.idea].move) or CATEGORY_NAMES.get(event.category, event.category)
            on = f" on {event.parent}" if event.parent is not None else ""
            return f"{event.problem}: {event.idea} ({kind}{on}) {one_line(event.text, _REASON_CHARS)}"
        case ev.VerdictGiven():
            return _verdict(event, state, best)
        case ev.HeatFinished() if event.standings:
            return f"{event.problem}: heat of {len(event.standings)}, won by {event.standings[0].variant}"
        case ev.SizesChecked():
            words = one_line(event.note or sizes_in_words(event.results))
            return f"{event.problem}: {event.variant} at other sizes: {words}"
        case ev.RoundFinished():
            carried = ", ".join(one.variant for one in event.survivors) or "none"
            return f"{event.problem}: round {event.round} done, carried: {carried}"
        case ev.ProblemFinished():
            return f"{event.problem}: finished: {one_line(event.reason)}"
        case ev.CommandHandled():
            return f"{'' if event.ok else 'refused: '}{one_line(event.message)}"
        case ev.LogLine() if event.level != "info":
            return f"{event.level}: {one_line(event.text)}"
        case ev.EngineStopped():
            return f"engine stopped: {one_line(event.message)}"
    return None


def _baseline(event: ev.BaselineMeasured) -> str:
    name = "torch.compile" if event.baseline.which == "compile" else "eager"
    if event.baseline.timing is None:
        return f"{event.problem}: no {name} time: {one_line(event.baseline.failure or 'unknown', _REASON_CHARS)}"
    floor = f", floor {milliseconds(event.floor_ms)} ms" if event.floor_ms is not None else ""
    remark = f"; DEGENERATE: {event.degenerate} pass every check" if event.degenerate else ""
    remark = remark or (f"; {event.tightened}" if event.tightened else "")
    remark = remark or (f"; {event.baseline.disturbance}" if event.baseline.disturbed else "")
    return f"{event.problem}: {name} {milliseconds(event.baseline.timing.median_ms)} ms{floor}{remark}"


def _verdict(event: ev.VerdictGiven, state: SessionState, best: dict[str, str | None]) -> str | None:
    variant = state.variants.get(event.variant)
    if variant is None:
        return None
    head = f"{variant.problem}: {variant.id} of {variant.idea}"
    verdict = event.verdict
    if not verdict.correct:
        reason = f": {one_line(verdict.reason, _REASON_CHARS)}" if verdict.reason else ""
        return f"{head} {verdict.status.replace('_', ' ')}{reason}"
    if verdict.same_code_as is not None:
        return f"{head}: {one_line(verdict.reason)}, not timed again"
    low, high = verdict.speedup_low, verdict.speedup_high
    between = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else ""
    now_best = state.problems[variant.problem].best
    record = ", best so far" if now_best == variant.id and best.get(variant.problem) != variant.id else ""
    best[variant.problem] = now_best
    return f"{head} correct, {milliseconds(variant.kernel_ms)} ms, {factor_words(verdict)} eager{between}{record}"
