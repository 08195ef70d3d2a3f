"""How a search went over time: each problem's verdicts and new best kernels, the spending, and the devices' work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec import Struct, field

from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.state.session_state import SessionState
from tui.text.story import TOLD, Story
from tui.view.over_time.occupancy import OCCUPYING, Occupancy

How = Literal["verdict", "runoff", "prune or restore"]
"""The event that changed a problem's best kernel."""
_MOVING = (ev.VerdictGiven, ev.RunoffFinished, ev.NodePruned, ev.NodeRestored)
_SPENDING = (ev.ModelReplied, ev.ModelCallFailed)
KEPT = frozenset({*_MOVING, *_SPENDING, *OCCUPYING})
"""The events that ``History.note`` keeps."""


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
    """What a state does not keep: the order of verdicts and of new bests, the spending and the devices' work.

    ``changes`` counts the changes of ``problems`` and ``spent``.
    """

    problems: dict[str, Trajectory] = field(default_factory=dict)
    spent: list[Spent] = field(default_factory=list)
    occupancy: Occupancy = field(default_factory=Occupancy)
    changes: int = 0

    def note(self, state: SessionState, recorded: Recorded) -> None:
        """Add an event that ``state`` has applied."""
        event = recorded.event
        if type(event) not in KEPT:
            return
        if isinstance(event, ev.VariantStage) and not self.occupancy.concerns(event):
            return
        seconds = state.elapsed_s(recorded.time)
        if type(event) in OCCUPYING:
            self.occupancy.note(state, event, seconds)
            if isinstance(event, ev.VariantStage):  # most events
                return
        if isinstance(event, _SPENDING):
            self.changes += 1
            total = state.spending.total
            self.spent.append(Spent(seconds, total.tokens, total.dollars))
            return
        if not isinstance(event, _MOVING):
            return
        self.changes += 1
        how: How = "prune or restore"
        touched = list(state.problems)
        if isinstance(event, ev.VerdictGiven):
            self._judged(state, event, seconds)
            variant = state.variants.get(event.variant)
            how, touched = "verdict", [variant.problem] if variant is not None else []
        elif isinstance(event, ev.RunoffFinished):
            how, touched = "runoff", [event.problem]
        for name in touched:
            problem, found = state.problems.get(name), self._of(name)
            if problem is None or problem.best == found.best:
                continue
            before, found.best = found.best, problem.best
            best = state.variants.get(problem.best or "")
            if best is not None and best.speedup is not None:
                found.bests.append(NewBest(seconds, len(found.judged), best.id, best.speedup, how, before))

    def _of(self, problem: str) -> Trajectory:
        if (found := self.problems.get(problem)) is None:
            found = self.problems[problem] = Trajectory()
        return found

    def _judged(self, state: SessionState, event: ev.VerdictGiven, seconds: float) -> None:
        variant = state.variants.get(event.variant)
        if variant is None or not variant.was_judged:
            return
        found = self._of(variant.problem)
        found.judged.add(variant.id)
        if variant.speedup is not None:
            found.timed.append(Point(seconds, len(found.judged), variant.id, variant.speedup))


class Folded(NamedTuple):
    """A session after some of its events."""

    state: SessionState
    story: Story
    history: History


def fold_all(recorded: Iterable[Recorded]) -> Folded:
    """Apply the events, and return the resulting state, its log and its history."""
    state, story, history = SessionState(), Story(), History()
    note, keep = story.note, history.note

    def noted(one: Recorded) -> None:
        kind = type(one.event)
        if kind in TOLD:
            note(state, one)
        if kind in KEPT:
            keep(state, one)

    state.apply_all(recorded, noted, TOLD | KEPT)
    return Folded(state, story, history)
