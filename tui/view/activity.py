"""Describe engine activity that the tree does not show: opening problems, waiting and stopping."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter

from engine.session.budget import most_reserved_s
from engine.session.records.events import BY_HAND, RESERVED, RESERVED_EARLIER, StopReason
from engine.session.records.verdict_text import speedup_words
from engine.session.state.session_state import ProblemState, SessionState, VariantState
from tui.text import format as fmt
from tui.text.narration import startup_words
from tui.text.program import program
from tui.text.waiting import held_in_words
from tui.view.model import Model
from tui.view.source import Limits

OPENING = "Opening the session …"
"""Text that an empty pane shows while the session opens."""
ENGINE_STARTS = "the engine is starting and looking for devices and compilers"
LIVE = ("live", "stalled", "replay")
BETWEEN_KERNELS_S = 1.0
"""Maximum seconds that kernels wait while the device changes from one kernel to the next."""
NAMED = 3
"""Maximum number of kernels named per problem and stage."""
RECENT = 200
"""Number of newest kernels per problem that ``reopening_of`` checks for changes."""

_INTERRUPTED: dict[StopReason, str] = {
    "waiting": "the engine stopped here to wait for replies by hand",
    "stopped": "the user stopped the search here",
    "budget": "the budget was used up here",
    "finished": "the search finished here",
}
_ON = "and a later engine resumed the search"


def activity_of(model: Model) -> str | None:
    """Describe the current activity in a few words, or return None while kernels are being built or timed."""
    state = model.state
    if model.is_opening:
        return "opening the session"
    if model.link.kind not in (*LIVE, "starting"):
        return None
    if model.link.kind == "replay" and state.engine is not None and state.engine.stopped is not None:
        if state.starts < model.recorded_starts:
            for_a_kernel = state.engine.stopped == "waiting" and bool(unwritable(state))
            told = (
                "the search waited here for a seeded kernel" if for_a_kernel else _INTERRUPTED.get(state.engine.stopped)
            )
            return f"{told or f'the engine stopped here ({state.engine.stopped})'}, {_ON}"
        return f"the recording ends here ({state.engine.stopped})"
    starting = model.link.kind == "starting" or model.has_unrecorded_start
    if starting or state.engine is None or state.engine.stopped is not None:
        return ENGINE_STARTS
    if (over := overrun_of(model)) is not None:
        return over
    if (waits := waiting_of(model)) is not None:
        return waits
    if (final := final_measurement_of(model)) is not None:
        return final
    if any(variant.stage not in ("queued", "waiting") for variant in state.at_work()):
        return None
    if (startup := startup_of(state)) is not None:
        return startup
    if opening := opening_of(state):
        return f"timing eager PyTorch on {opening[0].id}"
    if (again := reopening_of(state)) is not None:
        return f"reopening {again.id}: loading its reference"
    if (owed := owed_of(state, model.source.limits)) is not None:
        return owed
    if not state.problems:
        return "inspecting the problems and measuring the device"
    if runoffs := runoffs_of(state):
        return f"timing the leaders of {' and '.join(runoffs)} side by side"
    if (bare := baseline_beside(model)) is not None:
        return f"timing torch.compile on {bare.id}, {kernels_at_work(state)}"
    if (seeds := seeds_awaited(state)) is not None:
        return seeds
    calls = len(state.spending.flying)
    return f"waiting for {calls} repl{'y' if calls == 1 else 'ies'}" if calls and not state.flight else None


def now_of(model: Model, *, with_age: bool = True) -> str:
    """Return the text of the status line, or "" if there is nothing to report.

    ``with_age``: whether to say how long ago the newest best kernel took its lead.
    """
    state = model.state
    newest = max(
        (one for one in state.problems.values() if one.best is not None), key=attrgetter("lead_at"), default=None
    )
    said = []
    if model.link.kind in LIVE:
        now = "the search is paused" if state.paused else activity_of(model)
        said = [now or _at_work(state)]
    elif model.engine == "finished":
        said = [f"the search is finished; {_outcome_words(model)}"]
    if newest is not None:
        best = state.variants[newest.best or ""]
        tie, ago = f", tied with {newest.tied_with}", f", {fmt.age(model.now() - newest.lead_at)} ago"
        tie, ago = (tie, "") if newest.tied_with is not None else ("", ago if with_age else "")
        said.append(f"newest best: {best.id} of {best.problem}{tie}, {speedup_words(best.verdict)}{ago}")
    return "   ".join(f"{one[0].upper()}{one[1:]}" for one in said)


def _outcome_words(model: Model) -> str:
    state = model.state
    if "solved" in state.outcomes().values():
        if model.source.paths.is_packed:
            return f"to write the best kernels to files: {program()} export SESSION --sources DIRECTORY"
        return "the best kernels are in the session's best/ directory"
    return "the search found no correct kernel" if state.nothing_correct else "every problem is pruned"


def kernels_at_work(state: SessionState) -> str:
    """Count kernels by stage, such as ``1 timing, 2 building, 1 waiting, 3 queued``.

    A waiting kernel needs a free builder or device.
    """
    words = {"checking": "timing", "timing": "timing"}
    counts = Counter(words.get(str(one.stage), str(one.stage)) for one in state.at_work())
    said = [f"{counts[word]} {word}" for word in ("timing", "building", "waiting", "queued") if counts[word]]
    return ", ".join(said) or "no kernels in progress"


def startup_of(state: SessionState) -> str | None:
    """Return what a starting engine is doing, or None after its startup."""
    if state.engine is None or state.engine.startup is None:
        return None
    return startup_words(state.engine.startup, state)


def opening_of(state: SessionState) -> list[ProblemState]:
    """Return the problems whose reference the engine has not timed yet."""
    every = (one for one in state.problems.values() if one.id not in state.refused and _is_at_hand(state, one))
    return [problem for problem in every if "eager" not in problem.baselines and problem.finished is None]


def _is_at_hand(state: SessionState, problem: ProblemState) -> bool:
    """Return whether the engine is working on the problem now. Without turns, the result is always True."""
    return state.phase(problem.id) in (None, "running")


def _at_work(state: SessionState) -> str:
    """Name the kernels in flight, such as ``timing v57 of softmax, building v59 and v60 of gelu``."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in state.at_work():
        if one.stage not in ("queued", "waiting"):
            groups.setdefault((str(one.stage), one.problem), []).append(one.id)
    if not groups:
        return kernels_at_work(state)
    named = [f"{stage} {_listed(names)} of {problem}" for (stage, problem), names in groups.items()]
    return ", ".join(named)


def _listed(names: list[str]) -> str:
    return " and ".join(names) if len(names) <= NAMED else f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def reopening_of(state: SessionState) -> ProblemState | None:
    """Return the problem that the engine is reopening after a resume, or None when all problems are open."""
    if state.starts < 2 or state.engine is None or state.paused:
        return None
    if (step := state.engine.startup) is not None and not state.takes_turns:
        reopens = step.step == "problem" and "eager" in state.problems[step.problem].baselines
        return state.problems[step.problem] if reopens else None
    if state.turn is not None and state.turn.continued and state.turn.stopped_s is None:
        return None
    # Older engines record no steps, and no engine records when it reopens a problem for a new turn.
    since = state.engine.started_at
    searched = [one for one in state.problems.values() if one.id not in state.refused and _is_at_hand(state, one)]
    places = [place for place, one in enumerate(searched) if _moved_since(state, one, since)]
    left = [one for one in searched[places[-1] + 1 :] if one.finished is None] if places else searched
    judging = {one.problem for one in state.at_work()}
    asked = {call.site.problem for call in state.spending.flying.values()}
    # A problem that is only waiting for replies counts as open.
    return next((one for one in left if one.id in judging or one.id not in asked), None)


def _moved_since(state: SessionState, problem: ProblemState, time: float) -> bool:
    """Return whether the engine has worked on the problem since ``time``."""
    rounds = problem.rounds[-1:]
    if problem.runoff_at > time or any(max(one.started_at, one.finished_at or 0.0) > time for one in rounds):
        return True
    newest = (state.variants[name] for name in problem.variants[-RECENT:])
    return any((one.judged_at or 0.0) > time or one.stage not in (None, "queued") for one in newest)


def runoffs_of(state: SessionState) -> list[str]:
    """Return the problems that are certain to be in a runoff.

    All kernels of the open round have verdicts, except kernels that the user has seeded since the last verdict.
    """
    if state.paused:
        return []
    asked = {call.site.problem for call in state.spending.flying.values()}
    doubted = {one.problem for one in state.at_work() if one.proposer != BY_HAND}
    return [one.id for one in _possible_runoffs(state) if one.id not in asked | doubted]


def _possible_runoffs(state: SessionState) -> list[ProblemState]:
    """Return the problems that may be in a runoff.

    The engine starts a runoff as soon as all of the problem's kernels have verdicts. Any kernel in flight during a
    runoff is therefore newer than the last verdict.
    """
    at_work: dict[str, list[VariantState]] = {}
    for one in state.at_work():
        at_work.setdefault(one.problem, []).append(one)
    found = []
    for problem in state.problems.values():
        if problem.finished is not None or not problem.rounds or not _is_at_hand(state, problem):
            continue
        round_ = problem.rounds[-1]
        leaders = {one.id for one in state.leaders(problem.id, 2)}
        raced = {one.variant for one in problem.standings}
        if not round_.variants or round_.finished_at is not None or len(leaders) < 2 or leaders <= raced:
            continue
        if waiting := at_work.get(problem.id):
            last = max(state.variants[name].judged_at or 0.0 for name in problem.variants)
            if min(one.written_at for one in waiting) <= last:
                continue
        found.append(problem)
    return found


def owed_of(state: SessionState, limits: Limits) -> str | None:
    """Return what the engine measures after each problem's last round, or None before the end of that round."""
    owing = [
        one
        for one in state.problems.values()
        if one.id not in state.refused and not state.is_pruned(one.id) and _is_at_hand(state, one)
    ]
    ended = state.engine is None or state.engine.stopped is not None
    if ended or state.paused or state.flight or not owing or any(_has_rounds_left(one) for one in owing):
        return None
    timed = [one for one in owing if one.cannot_write is None or one.best is not None]
    if limits.torch_compile and (bare := [one for one in timed if "compile" not in one.baselines]):
        return f"timing torch.compile on {bare[0].id}"
    bests = [(one.id, state.variants[one.best]) for one in owing if one.best is not None]
    if limits.other_sizes and (unsized := [name for name, best in bests if best.at_sizes is None]):
        return f"judging the best kernel of {unsized[0]} at other sizes"
    return None


def baseline_beside(model: Model) -> ProblemState | None:
    """Return the problem on which the engine times torch.compile while all kernels in flight wait, if any.

    No event reports this timing, so this function rules out the other causes: a runoff, a change between kernels, or a
    device in use by another process.
    """
    state, flight = model.state, model.state.at_work()
    if not model.source.limits.torch_compile or state.paused or not flight:
        return None
    if any(one.stage not in ("queued", "waiting") for one in flight):
        return None
    began = state.engine.started_at if state.engine is not None else 0.0
    waited_s = model.now() - max(began, *(one.stage_since for one in flight))
    if 0 <= waited_s < BETWEEN_KERNELS_S or _possible_runoffs(state):
        return None
    for one in state.problems.values():
        judged = any(state.variants[name].verdict is not None for name in one.variants)
        if judged and "compile" not in one.baselines and one.id not in state.refused and not state.is_pruned(one.id):
            return one
    return None


def _has_rounds_left(problem: ProblemState) -> bool:
    return problem.finished is None and problem.cannot_write is None


def unwritable(state: SessionState) -> list[ProblemState]:
    """Return the problems that no proposer supports. These problems stay open for kernels that the user seeds."""
    return [one for one in state.problems.values() if one.cannot_write is not None and not state.is_pruned(one.id)]


def seeds_awaited(state: SessionState) -> str | None:
    """Say that the search is waiting for a seeded kernel, and which key seeds one. Return None otherwise."""
    searched = [one for one in state.problems.values() if one.id not in state.refused]
    waiting = unwritable(state)
    if not waiting or state.flight or state.paused:
        return None
    if any(_has_rounds_left(one) for one in searched if not state.is_pruned(one.id)):
        return None
    which = waiting[0].id if len(waiting) == 1 else f"{waiting[0].id} and {len(waiting) - 1} more"
    return f"no proposer supports {which}; press a to seed a kernel"


def waiting_of(model: Model) -> str | None:
    """Say that another process is using the device, or return None if the search is not waiting for a device."""
    if (wait := model.wait) is None:
        return None
    return f"waiting for the device: {held_in_words(wait)}"


def final_measurement_of(model: Model) -> str | None:
    """Return what the engine measures in the time that it reserves for final measurements, or None before that time."""
    state, minutes = model.state, model.minutes
    if minutes is None or state.engine is None or not state.log or state.paused:
        return None
    at, newest = state.log[-1]
    left_s = 60 * minutes - model.search_seconds()
    is_reserved = at >= state.engine.started_at and left_s <= most_reserved_s(minutes)
    if not is_reserved or not newest.text.startswith((RESERVED, RESERVED_EARLIER)):
        return None
    what = newest.text.removeprefix(RESERVED).removeprefix(RESERVED_EARLIER)
    return f"the time left is reserved for final measurements: {what}"


def overrun_of(model: Model) -> str | None:
    """Return what the engine is doing beyond its time budget, or None while time is left."""
    if model.minutes is None or model.link.kind not in ("live", "stalled"):
        return None
    over = model.search_seconds() - model.minutes * 60
    if over < 0:
        return None
    state = model.state
    if any(variant.stage != "queued" for variant in state.at_work()):
        doing = "finishing the last verdicts"
    elif model.source.limits.torch_compile and any(
        "compile" not in one.baselines for one in state.problems.values() if one.id not in state.refused
    ):
        doing = "timing torch.compile"
    else:
        doing = "finishing"
    return f"over budget by {fmt.age(over)}: {doing}"
