"""What the engine does now, in words, where the tree does not show it: while it opens problems, waits, or ends."""

from __future__ import annotations

from collections import Counter

from engine.state import ProblemState, SessionState
from tui import format as fmt
from tui.model import Model
from tui.source import Limits
from tui.waiting import held_in_words

LIVE = ("live", "stalled", "replay")


def activity_of(model: Model) -> str | None:
    """One sentence without a full stop, or None while kernels are at work, which is to be seen."""
    state = model.state
    if model.link.kind == "connecting" or not model.opened:
        return "opening the session"
    if model.link.kind not in (*LIVE, "starting"):
        return None
    if model.link.kind == "starting" or state.engine is None or state.engine.stopped is not None:
        return "the engine is starting: it looks for devices and compilers"
    if (over := overrun_of(model)) is not None:
        return over
    if (waits := waiting_of(model)) is not None:
        return waits
    if any(variant.stage != "queued" for variant in state.in_flight()):
        return None
    if opening := opening_of(state):
        return f"timing eager of {opening[0].id}"
    if (owed := owed_of(state, model.source.limits)) is not None:
        return owed
    return None if state.problems else "inspecting the problems and measuring what the device can do"


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
