"""A search's history: each problem's verdicts and new best kernels, the spending, and device activity."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.records.verdict_text import is_uncertain
from engine.session.state.session_state import SessionState
from tui.text.story import TOLD, Story
from tui.view.over_time.occupancy import CHANGES, Occupancy

How = Literal["verdict", "runoff", "prune or restore"]
"""The event that changed a problem's best kernel."""


class Point(Struct, frozen=True, gc=False):
    """A kernel's speedup over eager at one point in the search.

    ``seconds`` is the search time. ``verdicts`` is the number of the problem's kernels with a verdict at that point.
    """

    seconds: float
    verdicts: int
    variant: str
    speedup: float


class NewBest(Point, frozen=True, gc=False):
    """A kernel that became its problem's best. ``before`` is the previous best kernel, if any.

    ``uncertain``: whether the speedup was uncertain then. A later verdict does not change these fields.
    """

    how: How
    before: str | None
    uncertain: bool = False


class Trajectory(Struct):
    """A problem's search. ``timed`` lists correct kernels in the order of their verdicts. ``bests`` lists new bests."""

    timed: list[Point] = field(default_factory=list)
    bests: list[NewBest] = field(default_factory=list)
    judged: set[str] = field(default_factory=set)
    best: str | None = None


class Spent(Struct, frozen=True, gc=False):
    """The confirmed spending on all models, up to ``seconds`` of search time."""

    seconds: float
    tokens: int
    dollars: float


class History(Struct):
    """The history that a state does not keep: the order of verdicts and new bests, the spending, and device activity.

    ``changes`` counts the changes to ``problems`` and ``spent``. ``round_s`` is the search time at which a round last
    ended, in seconds.
    """

    problems: dict[str, Trajectory] = field(default_factory=dict)
    spent: list[Spent] = field(default_factory=list)
    occupancy: Occupancy = field(default_factory=Occupancy)
    changes: int = 0
    round_s: float | None = None

    def note(self, state: SessionState, recorded: Recorded) -> None:
        """Add an event that ``state`` has applied."""
        if (keep := _KEEPERS.get(type(recorded.event))) is not None:
            keep(self, state, recorded.event, recorded.time)

    def _staged(self, state: SessionState, event: ev.VariantStage, time: float) -> None:
        self.occupancy.note_stage(event, time)

    def _changed(self, state: SessionState, event: ev.AnyEvent, time: float) -> None:
        self.occupancy.note_change(state, event, time)

    def _measured(self, state: SessionState, event: ev.BaselineMeasured | ev.SizesChecked, time: float) -> None:
        self.occupancy.note_measurement(event.seconds, time)

    def _judged(self, state: SessionState, event: ev.VerdictGiven, time: float) -> None:
        self.occupancy.note_end(event.variant, time)
        self.changes += 1
        if (variant := state.variants.get(event.variant)) is None:
            return
        found = self._of(variant.problem)
        if variant.was_judged:
            found.judged.add(variant.id)
            if (speedup := variant.speedup) is not None:
                found.timed.append(Point(state.elapsed_s(time), len(found.judged), variant.id, speedup))
        self._look(state, variant.problem, time, "verdict")

    def _raced(self, state: SessionState, event: ev.RunoffFinished, time: float) -> None:
        self.occupancy.note_measurement(event.seconds, time)
        self.changes += 1
        self._look(state, event.problem, time, "runoff")

    def _finished(self, state: SessionState, event: ev.RoundFinished, time: float) -> None:
        self.round_s = state.elapsed_s(time)

    def _pruned(self, state: SessionState, event: ev.NodePruned | ev.NodeRestored, time: float) -> None:
        self.changes += 1
        for problem in state.problems:
            self._look(state, problem, time, "prune or restore")

    def _paid(self, state: SessionState, event: ev.ModelReplied | ev.ModelCallFailed, time: float) -> None:
        self.changes += 1
        total = state.spending.total
        self.spent.append(Spent(state.elapsed_s(time), total.tokens, total.dollars))

    def _look(self, state: SessionState, name: str, time: float, how: How) -> None:
        """Add the problem's best kernel if it is new."""
        problem, found = state.problems.get(name), self._of(name)
        if problem is None or problem.best == found.best:
            return
        before, found.best = found.best, problem.best
        best = state.variants.get(problem.best or "")
        if best is not None and best.speedup is not None:
            seconds = state.elapsed_s(time)
            uncertain = is_uncertain(best.verdict)
            found.bests.append(NewBest(seconds, len(found.judged), best.id, best.speedup, how, before, uncertain))

    def _of(self, problem: str) -> Trajectory:
        if (found := self.problems.get(problem)) is None:
            found = self.problems[problem] = Trajectory()
        return found


_KEEPERS: dict[type, Callable[[History, SessionState, Any, float], None]] = {
    **dict.fromkeys(CHANGES, History._changed),
    ev.VariantStage: History._staged,
    ev.VerdictGiven: History._judged,
    ev.BaselineMeasured: History._measured,
    ev.SizesChecked: History._measured,
    ev.RunoffFinished: History._raced,
    ev.RoundFinished: History._finished,
    ev.NodePruned: History._pruned,
    ev.NodeRestored: History._pruned,
    ev.ModelReplied: History._paid,
    ev.ModelCallFailed: History._paid,
}


class Folded(NamedTuple):
    """A session after some of its events."""

    state: SessionState
    story: Story
    history: History


def fold_all(recorded: Iterable[Recorded]) -> Folded:
    """Apply the events, and return the resulting state, its log and its history."""
    state, story, history = SessionState(), Story(), History()
    note, note_stage = story.note, history.occupancy.note_stage

    def noted(one: Recorded) -> None:
        event, time = one.event, one.time
        kind = type(event)
        if kind in TOLD:
            note(state, one)
        if kind in _KEEPERS:
            _KEEPERS[kind](history, state, event, time)

    listeners: dict[type, Callable[[Recorded], object]] = dict.fromkeys(TOLD | _KEEPERS.keys(), noted)
    # Most events are of this kind, so call their function directly.
    listeners[ev.VariantStage] = lambda one: note_stage(one.event, one.time)  # type: ignore[arg-type]
    state.apply_all(recorded, listeners)
    return Folded(state, story, history)
