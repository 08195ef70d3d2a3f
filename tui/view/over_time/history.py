"""How a search went over time: each problem's verdicts and new best kernels, the spending, and the devices' work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, NamedTuple

from msgspec import Struct, field

from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.state.session_state import SessionState
from tui.text.story import TOLD, Story
from tui.view.over_time.occupancy import CHANGES, EVALUATING, MEASURING, Occupancy

How = Literal["verdict", "runoff", "prune or restore"]
"""The event that changed a problem's best kernel."""


class Point(Struct, frozen=True, gc=False):
    """A speedup over eager at a moment of the search.

    ``seconds`` is the search time. ``verdicts`` counts the problem's kernels with a verdict up to then.
    """

    seconds: float
    verdicts: int
    variant: str
    speedup: float


class NewBest(Point, frozen=True, gc=False):
    """A kernel that became its problem's best. ``before`` is the previous best kernel, if any."""

    how: How
    before: str | None


class Trajectory(Struct):
    """A problem's search. ``timed`` lists correct kernels in the order of their verdicts; ``bests``, the new bests."""

    timed: list[Point] = field(default_factory=list)
    bests: list[NewBest] = field(default_factory=list)
    judged: set[str] = field(default_factory=set)
    best: str | None = None


class Spent(Struct, frozen=True, gc=False):
    """The confirmed spending on all models up to a moment, in seconds of search time."""

    seconds: float
    tokens: int
    dollars: float


class History(Struct):
    """What a state does not keep: the order of verdicts and of new bests, the spending and the devices' work.

    ``changes`` counts the changes of ``problems`` and ``spent``.
    """

    problems: dict[str, Trajectory] = field(default_factory=dict)
    spent: list[Spent] = field(default_factory=list)
    occupancy: Occupancy = field(default_factory=Occupancy)
    changes: int = 0

    def note(self, state: SessionState, recorded: Recorded) -> None:
        """Add an event that ``state`` has applied."""
        for keep in _KEEPERS.get(type(recorded.event), ()):
            keep(self, state, recorded)

    def _entered(self, state: SessionState, recorded: Recorded) -> None:
        self.occupancy.note_stage(recorded)

    def _measured(self, state: SessionState, recorded: Recorded) -> None:
        self.occupancy.note_measurement(recorded)

    def _changed(self, state: SessionState, recorded: Recorded) -> None:
        self.occupancy.note_change(state, recorded)

    def _judged(self, state: SessionState, recorded: Recorded) -> None:
        event: ev.VerdictGiven = recorded.event  # type: ignore[assignment]
        self.changes += 1
        if (variant := state.variants.get(event.variant)) is None:
            return
        found = self._of(variant.problem)
        if variant.was_judged:
            found.judged.add(variant.id)
            if (speedup := variant.speedup) is not None:
                found.timed.append(Point(state.elapsed_s(recorded.time), len(found.judged), variant.id, speedup))
        self._look(state, variant.problem, recorded.time, "verdict")

    def _raced(self, state: SessionState, recorded: Recorded) -> None:
        event: ev.RunoffFinished = recorded.event  # type: ignore[assignment]
        self.changes += 1
        self._look(state, event.problem, recorded.time, "runoff")

    def _pruned(self, state: SessionState, recorded: Recorded) -> None:
        self.changes += 1
        for problem in state.problems:
            self._look(state, problem, recorded.time, "prune or restore")

    def _paid(self, state: SessionState, recorded: Recorded) -> None:
        self.changes += 1
        total = state.spending.total
        self.spent.append(Spent(state.elapsed_s(recorded.time), total.tokens, total.dollars))

    def _look(self, state: SessionState, name: str, time: float, how: How) -> None:
        """Add the problem's best kernel if it is a new one."""
        problem, found = state.problems.get(name), self._of(name)
        if problem is None or problem.best == found.best:
            return
        before, found.best = found.best, problem.best
        best = state.variants.get(problem.best or "")
        if best is not None and best.speedup is not None:
            seconds = state.elapsed_s(time)
            found.bests.append(NewBest(seconds, len(found.judged), best.id, best.speedup, how, before))

    def _of(self, problem: str) -> Trajectory:
        if (found := self.problems.get(problem)) is None:
            found = self.problems[problem] = Trajectory()
        return found


_Keeper = Callable[[History, SessionState, Recorded], None]
_KEEPERS: dict[type, tuple[_Keeper, ...]] = {
    **dict.fromkeys(EVALUATING, (History._entered,)),
    **dict.fromkeys(MEASURING, (History._measured,)),
    **dict.fromkeys(CHANGES, (History._changed,)),
    ev.VerdictGiven: (History._entered, History._judged),
    ev.RunoffFinished: (History._measured, History._raced),
    ev.NodePruned: (History._pruned,),
    ev.NodeRestored: (History._pruned,),
    ev.ModelReplied: (History._paid,),
    ev.ModelCallFailed: (History._paid,),
}


class Folded(NamedTuple):
    """A session after some of its events."""

    state: SessionState
    story: Story
    history: History


def fold_all(recorded: Iterable[Recorded]) -> Folded:
    """Apply the events, and return the resulting state, its log and its history."""
    state, story, history = SessionState(), Story(), History()
    listeners: dict[type, list[Callable[[Recorded], object]]] = {kind: [partial(story.note, state)] for kind in TOLD}
    for kind, keepers in _KEEPERS.items():
        listeners.setdefault(kind, []).extend(partial(keep, history, state) for keep in keepers)
    listeners[ev.VariantStage] = [history.occupancy.note_stage]  # most events: one call less
    state.apply_all(recorded, listeners)
    return Folded(state, story, history)
