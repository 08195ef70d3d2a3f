"""Describe an event in one plain line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from engine.devices.fact import DeviceFact
from engine.proposers.categories import CATEGORY_NAMES
from engine.session.records import events as ev
from engine.session.records.events import AnyEvent
from engine.session.records.other_sizes import sizes_in_words
from engine.session.records.problem_end import is_rounds_complete
from engine.session.records.speedup_text import speedup
from engine.session.records.verdict import Verdict
from engine.session.records.verdict_text import counts_by_low_end, disturbance, is_disturbed, speedup_words
from engine.session.state.session_state import ProblemState, SessionState, VariantState
from tui.text.certainty import interval_words
from tui.text.format import duration, milliseconds, transformation_label
from tui.text.runoff_text import above_low_end, tie_words, why_lower, why_no_star
from tui.text.sanitize import one_line

_REASON_CHARS = 160
_TURN_ENDS: dict[ev.TurnEnd, str] = {
    "time": "the problem's minutes are used up",
    "near_sol": "near the SOL",
    "no_gain": "no gain in several rounds",
    "done": "no round or idea is left",
    "limit": "spending limit reached",
    "no_proposer": "no proposer can write a kernel",
    "refused": "refused",
    "pruned": "pruned",
    "not_opened": "not opened",
}
"""Why a turn ended."""
BEST_SO_FAR = "best so far"
"""Remark on a verdict that makes its kernel the best."""
_EXCEPT_RESERVE = ", except those reserved for final measurements"


class Reported(NamedTuple):
    """The last best kernel of a problem that the lines reported, and the last one with a measurable lead."""

    best: str | None = None
    with_lead: str | None = None

    @classmethod
    def of(cls, problem: ProblemState) -> Reported:
        """Return what to report now."""
        return cls(problem.best, problem.best_with_lead)

    def is_news(self, before: Reported) -> bool:
        """Return whether another kernel is the best since ``before``, or the best kernel has a lead since then."""
        return self.best != before.best or self.best == self.with_lead != before.with_lead

    def former(self, before: Reported) -> str | None:
        """Return the kernel in ``before`` that the best kernel replaced, or from which it separated."""
        return before.best if before.best != self.best else before.with_lead


def devices_in_words(devices: Sequence[DeviceFact]) -> str:
    """Name devices by model, with the hosts that have them, such as ``2 x NVIDIA H200 (gpu1, gpu2)``."""
    counts = Counter(one_line(device.name) for device in devices)
    words = []
    for name, count in counts.items():
        hosts = dict.fromkeys(one_line(one.host) for one in devices if one_line(one.name) == name and one.host)
        place = f" ({', '.join(hosts)})" if hosts else ""
        words.append(f"{f'{count} x ' if count > 1 else ''}{name}{place}")
    return ", ".join(words)


def line_of(event: AnyEvent, state: SessionState, best: dict[str, Reported]) -> str | None:
    """Describe ``event``, or return None if it needs no line.

    ``state`` has already applied the event. ``best`` maps each problem to its ``Reported``; this function updates it.
    """
    match event:
        case ev.EngineStarted():
            devices = devices_in_words(event.devices)
            where = f" on {devices}; isolation: {event.sandbox}" if devices else ""
            return f"engine {event.pid} {'resumed' if event.resumed else 'started'}{where}"
        case ev.StartupStep():
            return startup_words(event, state)
        case ev.DeviceJoined():
            return f"{one_line(event.device.host)} joined: {one_line(event.device.name)}"
        case ev.DeviceLeft():
            return f"lost {one_line(event.reason)}"
        case ev.ProblemRefused():
            return f"{event.problem}: not searched: {one_line(event.reason)}"
        case ev.CannotWrite() if event.reason:
            return f"{event.problem}: none of the session's proposers can write a kernel: {one_line(event.reason)}"
        case ev.BaselineMeasured():
            return _baseline(event)
        case ev.RoundStarted():
            parents = ", ".join(one.variant for one in event.parents)
            return f"{event.problem}: round {event.round}" + (f" from {parents}" if parents else ", first kernels")
        case ev.IdeaProposed():
            label = transformation_label(one_line(state.ideas[event.idea].transformation))
            kind = label or CATEGORY_NAMES.get(event.category, event.category)
            on = f" on {event.parent}" if event.parent is not None else ""
            return f"{event.problem}: {event.idea} ({kind}{on}) {one_line(event.text, _REASON_CHARS)}"
        case ev.SourceRepeated():
            return f"{event.problem}: {event.idea}: {repeat_words(event)}: not judged again"
        case ev.VerdictGiven():
            return _verdict(event, state, best)
        case ev.RunoffFinished() if event.standings:
            before = best.get(event.problem, Reported())
            best[event.problem] = Reported.of(state.problems[event.problem])
            return runoff_line(event, state, before)
        case ev.Profiled() if event.bottleneck is not None:
            return f"{event.variant}: hardware counters show the bottleneck: {event.bottleneck}"
        case ev.SizesChecked():
            words = one_line(event.note or sizes_in_words(event.results))
            return f"{event.problem}: {event.variant} at other sizes: {words}"
        case ev.RoundFinished():
            selected = ", ".join(one.variant for one in event.selected) or "none"
            return f"{event.problem}: round {event.round} done, selected: {selected}"
        case ev.ProblemFinished():
            return f"{event.problem}: finished: {one_line(end_words(state, event.problem, event.reason))}"
        case ev.TurnStarted() | ev.TurnEnded():
            return turn_line(event, state)
        case ev.CommandHandled():
            return f"{'' if event.ok else 'refused: '}{one_line(event.message)}"
        case ev.LogLine() if event.level != "info":
            return f"{event.level}: {one_line(event.text)}"
        case ev.EngineStopped():
            return f"engine: {one_line(event.message)}"
    return None


def end_words(state: SessionState, problem: str, reason: str, *, keys: bool = False) -> str:
    """Return why the search of a problem ended. If it found no kernel that beats eager, and more rounds would not help,
    also say what to do. ``keys``: whether to name the monitor's keys.
    """
    best = state.variants.get(state.problems[problem].best or "") if problem in state.problems else None
    if is_rounds_complete(reason) or problem in state.refused or (best is not None and (best.speedup or 0.0) >= 1.0):
        return reason
    slower = f"the best is slower than PyTorch ({speedup_words(best.verdict)}); " if best is not None else ""
    seed = "seed a kernel (a) or an idea (i)" if keys else "seed a kernel or an idea"
    return f"{reason}; {slower}{seed} while the search runs, or start a new session with a language model"


def undecided_words(state: SessionState, variant: VariantState) -> str:
    """Say what the end of the problem's search means for a kernel that no round has selected or dropped. Return "" if
    the search of the problem continues.
    """
    problem = state.problems.get(variant.problem)
    if problem is None or problem.finished is None or not variant.is_undecided:
        return ""
    if is_rounds_complete(problem.finished):
        return "The problem's rounds are complete, so no round builds on this kernel."
    if variant.stage is not None:
        return "If this kernel is correct and a proposer has an idea for it, a new round builds on it."
    return f"The search of the problem has ended: {problem.finished}."


def startup_words(step: ev.StartupStep, state: SessionState) -> str | None:
    """Describe a step of an engine's startup, or return None for the end of the startup."""
    if step.step == "judge":
        return "starting the judge"
    if step.step == "peaks":
        return "starting the judge and measuring the device's peaks"
    if step.step == "done" or (problem := state.problems.get(step.problem)) is None:
        return None
    doing = "reopening" if "eager" in problem.baselines else "timing eager PyTorch on"
    return f"opening problems {step.number}/{step.count}: {doing} {problem.id}"


def turn_line(event: ev.TurnStarted | ev.TurnEnded, state: SessionState) -> str:
    """Describe the start or end of a turn, with the number of problems that have had their turn."""
    phases = list(state.phases().values())
    done = f"{phases.count('done')} of {len(phases)} problems done"
    if isinstance(event, ev.TurnStarted):
        return f"{event.problem}: searching it for up to {duration(60 * event.minutes)}; {done}"
    return f"{event.problem}: turn ended: {turn_end_words(state, event.problem, event.reason)}; {done}"


def turn_end_words(state: SessionState, problem: str, reason: ev.TurnEnd) -> str:
    """Say why a turn ended.

    If no kernel has a verdict, the turn also uses the time that it reserves for measurements.
    """
    reserves = reason == "time" and any(variant.verdict is not None for variant in state.variants_of(problem))
    return _TURN_ENDS[reason] + _EXCEPT_RESERVE * reserves


def repeat_words(event: ev.SourceRepeated) -> str:
    """Describe a repeated source, such as ``same source as v12: a reply from gpt-5.5 that should repair v14``."""
    task = f" that should repair {event.parent}" if event.number is None and event.parent is not None else ""
    return f"same source as {event.same_as}: a reply from {one_line(event.proposer)}{task}"


def _baseline(event: ev.BaselineMeasured) -> str:
    name = "torch.compile" if event.baseline.which == "compile" else "eager"
    if event.baseline.timing is None:
        return f"{event.problem}: no {name} time: {one_line(event.baseline.failure or 'unknown', _REASON_CHARS)}"
    sol = f", SOL {milliseconds(event.sol_ms)} ms" if event.sol_ms is not None else ""
    remark = f"; DEGENERATE: {event.degenerate} pass every check" if event.degenerate else ""
    remark = remark or (f"; {event.tightened}" if event.tightened else "")
    remark = remark or (f"; {disturbance(event.baseline)}" if is_disturbed(event.baseline) else "")
    return f"{event.problem}: {name} alone {milliseconds(event.baseline.timing.median_ms)} ms{sol}{remark}"


def runoff_line(event: ev.RunoffFinished, state: SessionState, before: Reported) -> str:
    """Name a runoff's fastest kernel.

    If another kernel was or is the best, or the best kernel now has a measurable lead, also name the best kernel and
    the reason. ``before`` is from before the runoff. ``state`` has already applied the event.
    """
    fastest = event.standings[0].variant
    words = f"{event.problem}: runoff of {len(event.standings)} kernels, fastest: {fastest}"
    problem = state.problems[event.problem]
    now, reported = problem.best, Reported.of(problem)
    is_news = reported.is_news(before)
    if now is None or (now == fastest and not is_news):
        return words
    why = why_no_star(state, state.variants[fastest]) if now != fastest else ""
    lower = why_lower(state, problem, reported.former(before)) if is_news else ""
    if not is_news:
        said = f"best remains: {now}"
    else:
        said = tie_words(now, problem.tied_with) if problem.tied_with is not None else f"new best: {now}"
    return f"{words}; {said}{f', {lower}' if lower else ''}{f' ({fastest}: {why})' if why else ''}"


def judged_again_words(variant: VariantState) -> str:
    """Format a repeated verdict as ``judged again: 2.10x, was 2.31x``. Return "" if there is no earlier verdict."""
    if not variant.earlier or variant.verdict is None:
        return ""
    return f"judged again: {_outcome(variant.verdict)}, was {_outcome(variant.earlier[-1])}"


def overtaken_words(former: VariantState | None, best: VariantState) -> str:
    """Say that ``best`` replaced ``former`` only because a repeated verdict lowered the speedup of ``former``.

    Return "" if no verdict on ``former`` has a higher speedup than ``best``, or if ``former`` is no longer correct.
    """
    if former is None or former.verdict is None or not 0.0 < (former.speedup or 0.0) < (best.speedup or 0.0):
        return ""
    highest = max((one for one in former.earlier if one.correct), key=lambda one: one.speedup or 0.0, default=None)
    if highest is None or (highest.speedup or 0.0) <= (best.speedup or 0.0):
        return ""
    return f"{former.id} was judged again: {_outcome(former.verdict)}, was {_outcome(highest)}"


def _outcome(verdict: Verdict) -> str:
    return speedup_words(verdict) if verdict.speedup is not None else verdict.status.replace("_", " ")


def _low_end(state: SessionState, variant: VariantState, best: str | None) -> str:
    """Say why ``variant`` has a higher speedup than the best kernel but is not the best: its speedup is uncertain.

    The search ranks an uncertain speedup by the low end of its interval.
    """
    verdict, leader = variant.verdict, state.variants.get(best or "")
    if verdict is None or leader is None or (leader.speedup or 0.0) >= (verdict.speedup or 0.0):
        return ""
    low = verdict.speedup_low
    return (
        f", ranked as {speedup(low)} because the speedup is uncertain"
        if low is not None and counts_by_low_end(verdict)
        else ""
    )


def _verdict(event: ev.VerdictGiven, state: SessionState, best: dict[str, Reported]) -> str | None:
    variant = state.variants.get(event.variant)
    if variant is None:
        return None
    head = f"{variant.problem}: {variant.id} of {variant.idea}{' (judged again)' if variant.judged > 1 else ''}"
    verdict = event.verdict
    if event.why and verdict.slow_host is not None:
        return f"{variant.problem}: {one_line(event.why)}"
    if not verdict.correct:
        reason = f": {one_line(verdict.reason, _REASON_CHARS)}" if verdict.reason else ""
        return f"{head} {verdict.status.replace('_', ' ')}{reason}"
    if verdict.same_code_as is not None:
        return f"{head}: {one_line(verdict.reason)}, not timed again"
    between = f" {interval_words(verdict)}".rstrip()
    before, now = best.get(variant.problem, Reported()), Reported.of(state.problems[variant.problem])
    best[variant.problem] = now
    again = f", was {_outcome(variant.earlier[-1])}" if variant.earlier else ""
    record = _low_end(state, variant, now.best)
    if now.best == variant.id and now.is_news(before):
        former = state.variants.get(now.former(before) or "")
        overtaken, lower = overtaken_words(former, variant), above_low_end(former, variant)
        tied_with = state.problems[variant.problem].tied_with
        record = f", {tie_words(variant.id, tied_with) if tied_with is not None else BEST_SO_FAR}"
        record = f", the best now: {overtaken}" if overtaken else f"{record}{f'; {lower}' if lower else ''}"
    elif now.best is not None and before.best is not None and now.is_news(before):
        record += f", the best is now {now.best}"
    words = f"speedup {speedup_words(verdict)}{between}{again}{record}"
    return f"{head} correct, {milliseconds(variant.kernel_ms)} ms, {words}"
