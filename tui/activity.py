"""What the engine does now, in words, where the tree does not show it: while it opens problems, waits, or ends."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter

from engine.events import StopReason
from engine.state import ProblemState, SessionState
from tui import format as fmt
from tui.certainty import factor_words
from tui.model import Model
from tui.source import Limits
from tui.waiting import held_in_words

LIVE = ("live", "stalled", "replay")
NAMED = 3
"""Kernels of a problem at the same work that are named."""
RECENT = 200
"""Newest kernels of a problem that are asked whether anything has happened to them."""

_INTERRUPTED: dict[StopReason, str] = {
    "waiting": "the search waited here for replies by hand",
    "stopped": "the search was stopped here",
    "budget": "the budget was spent here",
    "finished": "the search had finished here",
}
_ON = "and went on later"


def activity_of(model: Model) -> str | None:
    """One sentence without a full stop, or None while kernels are at work, which is to be seen."""
    state = model.state
    if model.link.kind == "connecting" or not model.opened:
        return "opening the session"
    if model.link.kind not in (*LIVE, "starting"):
        return None
    if model.link.kind == "replay" and state.engine is not None and state.engine.stopped is not None:
        if state.starts < model.recorded_starts:
            return f"{_INTERRUPTED.get(state.engine.stopped, f'the engine ended here ({state.engine.stopped})')}, {_ON}"
        return f"the recorded search ended here ({state.engine.stopped})"
    if model.link.kind == "starting" or state.engine is None or state.engine.stopped is not None:
        return "the engine is starting: it looks for devices and compilers"
    if (over := overrun_of(model)) is not None:
        return over
    if (waits := waiting_of(model)) is not None:
        return waits
    if any(variant.stage not in ("queued", "waiting") for variant in state.in_flight()):
        return None
    if opening := opening_of(state):
        return f"timing eager of {opening[0].id}"
    if (again := reopening_of(state)) is not None:
        return f"opening {again.id} again: its reference is loaded before kernels are judged"
    if (owed := owed_of(state, model.source.limits)) is not None:
        return owed
    if not state.problems:
        return "inspecting the problems and measuring what the device can do"
    if heats := heats_of(state):
        return f"timing the leaders of {' and '.join(heats)} side by side"
    calls = len(state.spending.flying)
    return f"waiting for {calls} repl{'y' if calls == 1 else 'ies'}" if calls and not state.flight else None


def now_of(model: Model) -> str:
    """What goes on, for a line that is always there; "" where that is nothing."""
    state = model.state
    newest = max(
        ((problem.best_at, best) for problem in state.problems.values() if (best := model.best(problem)) is not None),
        key=itemgetter(0),
        default=None,
    )
    said = []
    if model.link.kind in LIVE:
        now = "the search is paused" if state.paused else activity_of(model)
        said = [now or _at_work(state)]
    elif model.engine == "finished":
        said = ["all is done, and the best kernels lie in the session's best/"]
    if newest is not None:
        since, best = newest
        ago = fmt.age(model.now() - since)
        said.append(f"newest best: {best.id} of {best.problem}, {factor_words(best.verdict)}, {ago} ago")
    return "   ".join(f"{one[0].upper()}{one[1:]}" for one in said)


def kernels_at_work(state: SessionState) -> str:
    """``1 timing, 2 building, 1 waiting, 3 queued``: who waits has been taken up, and waits for builder or device."""
    words = {"checking": "timing", "timing": "timing"}
    counts = Counter(words.get(str(one.stage), str(one.stage)) for one in state.in_flight())
    said = [f"{counts[word]} {word}" for word in ("timing", "building", "waiting", "queued") if counts[word]]
    return ", ".join(said) or "no kernel at work"


def opening_of(state: SessionState) -> list[ProblemState]:
    """Problems whose reference has not been timed yet, in their order."""
    every = (problem for problem in state.problems.values() if problem.id not in state.refused)
    return [problem for problem in every if "eager" not in problem.baselines and problem.finished is None]


def _at_work(state: SessionState) -> str:
    """``timing v57 of softmax, building v59 and v60 of gelu``; the status line has the counts."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in state.in_flight():
        if one.stage not in ("queued", "waiting"):
            groups.setdefault((str(one.stage), one.problem), []).append(one.id)
    if not groups:
        return kernels_at_work(state)
    named = [f"{stage} {_listed(names)} of {problem}" for (stage, problem), names in groups.items()]
    return ", ".join(named)


def _listed(names: list[str]) -> str:
    return " and ".join(names) if len(names) <= NAMED else f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def reopening_of(state: SessionState) -> ProblemState | None:
    """The problem that a resumed engine opens again, one after the other; None when all of them are open."""
    if state.starts < 2 or state.engine is None or state.paused:
        return None
    since = state.engine.started_at
    searched = [one for one in state.problems.values() if one.id not in state.refused]
    places = [place for place, one in enumerate(searched) if _moved_since(state, one, since)]
    left = [one for one in searched[places[-1] + 1 :] if one.finished is None] if places else searched
    return next(iter(left), None)


def _moved_since(state: SessionState, problem: ProblemState, time: float) -> bool:
    """Whether anything was done about the problem after ``time``."""
    rounds = problem.rounds[-1:]
    if problem.heat_at > time or any(max(one.started_at, one.finished_at or 0.0) > time for one in rounds):
        return True
    newest = (state.variants[name] for name in problem.variants[-RECENT:])
    return any((one.judged_at or 0.0) > time or one.stage not in (None, "queued") for one in newest)


def heats_of(state: SessionState) -> list[str]:
    """Problems whose open round has all its verdicts: their leaders are being timed side by side."""
    if state.paused:
        return []
    asked = {call.site.problem for call in state.spending.flying.values()}
    judging = {one.problem for one in state.in_flight()}
    found = []
    for problem in state.problems.values():
        if problem.id in asked | judging or problem.finished is not None or not problem.rounds:
            continue
        round_ = problem.rounds[-1]
        leaders = {one.id for one in state.leaders(problem.id, 2)}
        raced = {one.variant for one in problem.standings}
        if round_.variants and round_.finished_at is None and len(leaders) > 1 and not leaders <= raced:
            found.append(problem.id)
    return found


def owed_of(state: SessionState, limits: Limits) -> str | None:
    """What the engine measures when the rounds of every problem are over, in its own order; None before that."""
    searched = [one for one in state.problems.values() if one.id not in state.refused]
    ended = state.engine is None or state.engine.stopped is not None
    if ended or state.paused or state.flight or not searched or any(one.finished is None for one in searched):
        return None
    owing = [one for one in searched if not state.is_pruned(one.id)]
    if limits.torch_compile and (bare := [one for one in owing if "compile" not in one.baselines]):
        return f"measuring torch.compile of {bare[0].id}"
    bests = [(one.id, state.variants[one.best]) for one in owing if one.best is not None]
    if limits.other_sizes and (unsized := [name for name, best in bests if best.at_sizes is None]):
        return f"judging the best kernel of {unsized[0]} at other sizes"
    return None


def waiting_of(model: Model) -> str | None:
    """That a process of somebody else keeps the device from this search."""
    if (wait := model.wait) is None:
        return None
    return f"waiting for the device: {held_in_words(wait.pid, wait.command)}"


def overrun_of(model: Model) -> str | None:
    """What the engine still does when its minutes are over."""
    if model.minutes is None or model.link.kind not in ("live", "stalled"):
        return None
    over = model.search_seconds() - model.minutes * 60
    if over < 0:
        return None
    state = model.state
    if any(variant.stage != "queued" for variant in state.in_flight()):
        doing = "the last verdicts"
    elif model.source.limits.torch_compile and any(
        "compile" not in one.baselines for one in state.problems.values() if one.id not in state.refused
    ):
        doing = "torch.compile is timed"
    else:
        doing = "finishing"
    return f"over budget by {fmt.age(over)}: {doing}"
