"""How a search went over time: each problem's verdicts and new best kernels, and the spending on models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, field

from engine.session.budget import elapsed_s
from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.state.session_state import SessionState

How = Literal["verdict", "runoff", "prune or restore"]
"""The event that changed a problem's best kernel."""
_VERDICTS = (ev.VerdictGiven,)
_MOVING = (ev.VerdictGiven, ev.RunoffFinished, ev.NodePruned, ev.NodeRestored)
_SPENDING = (ev.ModelReplied, ev.ModelCallFailed)


class Point(Struct, frozen=True):
    """A speedup over eager at a moment of the search.

    ``seconds`` is the search time. ``verdicts`` counts the problem's kernels with a verdict up to then.
    """

    seconds: float
    verdicts: int
    variant: str
    speedup: float


class NewBest(Point, frozen=True):
    """A kernel that became its problem's best. ``before`` is the previous best kernel, if any."""

    how: How
    before: str | None


class Trajectory(Struct):
    """A problem's search. ``timed`` lists correct kernels in the order of their verdicts; ``bests``, the new bests."""

    timed: list[Point] = field(default_factory=list)
    bests: list[NewBest] = field(default_factory=list)
    judged: set[str] = field(default_factory=set)
    best: str | None = None


class Spent(Struct, frozen=True):
    """The confirmed spending on all models up to a moment, in seconds of search time."""

    seconds: float
    tokens: int
    dollars: float


class History(Struct):
    """What a state does not keep: the order of verdicts and of new bests, and the spending over time."""

    problems: dict[str, Trajectory] = field(default_factory=dict)
    spent: list[Spent] = field(default_factory=list)

    def note(self, state: SessionState, recorded: Recorded) -> None:
        """Add an event that ``state`` has applied."""
        event, seconds = recorded.event, elapsed_s(state, recorded.time)
        if isinstance(event, _SPENDING):
            total = state.spending.total
            self.spent.append(Spent(seconds, total.tokens, total.dollars))
            return
        if isinstance(event, _VERDICTS):
            self._judged(state, event, seconds)
        how: How = "prune or restore"
        if isinstance(event, ev.VerdictGiven | ev.RunoffFinished):
            how = "verdict" if isinstance(event, ev.VerdictGiven) else "runoff"
        for name, problem in state.problems.items():
            found = self.problems.setdefault(name, Trajectory())
            if problem.best == found.best:
                continue
            before, found.best = found.best, problem.best
            best = state.variants.get(problem.best or "")
            if best is not None and best.speedup is not None:
                found.bests.append(NewBest(seconds, len(found.judged), best.id, best.speedup, how, before))

    def _judged(self, state: SessionState, event: ev.VerdictGiven, seconds: float) -> None:
        variant = state.variants.get(event.variant)
        if variant is None or not variant.was_judged:
            return
        found = self.problems.setdefault(variant.problem, Trajectory())
        found.judged.add(variant.id)
        if variant.speedup is not None:
            found.timed.append(Point(seconds, len(found.judged), variant.id, variant.speedup))


def fold_with_history(recorded: Iterable[Recorded]) -> tuple[SessionState, History]:
    """Apply the events, and return the resulting state and its history."""
    state, history = SessionState(), History()
    state.apply_all(recorded, lambda one: history.note(state, one), {*_MOVING, *_SPENDING})
    return state, history
