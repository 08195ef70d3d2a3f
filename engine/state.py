"""The fold: events -> problems, rounds, ideas, variants, standing. Pure; the only truth about a session.

The same fold serves the engine, the monitor, resume, replay and reports. ``SessionState.apply`` takes one
recorded event and never raises for an order that the engine can produce.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import islice
from pathlib import Path

from msgspec import Struct, field

from engine import events as ev
from engine.events import DeviceFact, Recorded
from engine.handlers import HANDLERS
from engine.nodes import EngineState, IdeaState, ProblemState, RoundState, VariantState
from engine.ranking import round_of, standing_order
from engine.spend import Spending

__all__ = ["EngineState", "IdeaState", "ProblemState", "RoundState", "SessionState", "VariantState", "fold"]

LOG_LINES = 2000


class SessionState(Struct):
    """Everything that a session is, at event ``seq``.

    ``flight`` (variants without a verdict, oldest first), ``below`` (node -> the ideas or variants right under it) and
    ``derived`` (variant -> the variants written from it) are indexes, so that a monitor may ask often. ``minutes``,
    ``rounds``, ``dollars``, ``tokens`` and ``calls`` are limits that a person set, None where the config's hold.
    ``awaited``: ideas and variants that others hang under, but that were not there when those came; a sound session has
    none. ``shares``: limits that a person set for a model, by its name, and under "" for each problem alone.
    ``verdicts``: kernels that have one; being judged again makes no second.
    ``useless``: names of calls whose replies held nothing. ``waits``: devices that other processes hold now;
    ``held_up_at``: since when they hold all of them, which counts towards no budget.
    """

    name: str = ""
    version: str = ""
    config: str = ""
    seed: int = 0
    seq: int = 0
    created_at: float = 0.0
    time: float = 0.0
    engine: EngineState | None = None
    starts: int = 0
    search_seconds: float = 0.0
    devices: dict[str, DeviceFact] = field(default_factory=dict)
    waits: dict[str, ev.DeviceAwaited] = field(default_factory=dict)
    held_up_at: float | None = None
    problems: dict[str, ProblemState] = field(default_factory=dict)
    refused: dict[str, ev.ProblemRefused] = field(default_factory=dict)
    ideas: dict[str, IdeaState] = field(default_factory=dict)
    variants: dict[str, VariantState] = field(default_factory=dict)
    flight: dict[str, None] = field(default_factory=dict)
    below: dict[str, list[str]] = field(default_factory=dict)
    derived: dict[str, list[str]] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    pruned: set[str] = field(default_factory=set)
    pinned: set[str] = field(default_factory=set)
    paused: bool = False
    paused_at: float | None = None
    minutes: float | None = None
    rounds: int | None = None
    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None
    shares: dict[str, ev.ShareChanged] = field(default_factory=dict)
    spending: Spending = field(default_factory=Spending)
    handled: dict[int, ev.CommandHandled] = field(default_factory=dict)
    useless: set[str] = field(default_factory=set)
    log: deque[tuple[float, ev.LogLine]] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    verdicts: int = 0

    def apply(self, recorded: Recorded) -> None:
        """Fold one event in. Unknown references (a foreign or damaged file) are ignored where that can be; raises
        SessionDamaged where nothing after them would make sense."""
        self.apply_all((recorded,))

    def apply_all(
        self,
        recorded: Iterable[Recorded],
        then: Callable[[Recorded], object] | None = None,
        kinds: Set[type] = frozenset(),
    ) -> None:
        """``apply`` for many events, a session of 160,000 say; ``then`` is called with each one of ``kinds`` once it
        is folded in."""
        for one in recorded:
            event, time = one.event, one.time
            kind = type(event)
            try:
                if (handler := HANDLERS.get(kind)) is not None:
                    handler(self, event, time)
            except (LookupError, ArithmeticError, TypeError, ValueError) as error:
                raise self._unfit(one, error) from error
            self.seq, self.time = one.seq, time
            if kind in kinds and then is not None:
                then(one)

    def _unfit(self, recorded: Recorded, error: Exception) -> Exception:
        # Loaded for an error alone: the session's package builds on this module.
        from engine.session.errors import SessionDamaged

        return SessionDamaged(
            f"{self.name or 'the session'}: event {recorded.seq} ({ev.kind_of(recorded.event)}) does not go "
            f"together with those before it ({error!r}). The session was altered, or written by another version.",
            Path(self.name),
        )

    # What others ask of the state

    def is_pruned(self, node: str) -> bool:
        """Whether ``node`` (problem, idea or variant) or anything above it in its lineage was pruned."""
        return bool(self.pruned) and any(above in self.pruned for above in self.lineage(node))

    def is_pinned(self, node: str) -> bool:
        return any(above in self.pinned for above in self.lineage(node))

    def lineage(self, node: str) -> Iterator[str]:
        """``node`` and all above it: variant, its idea, that idea's parent variant, ..., the problem."""
        problem: str | None = None
        here: str | None = node
        while here is not None:
            yield here
            if (variant := self.variants.get(here)) is not None:
                problem, here = variant.problem, variant.idea
            elif (idea := self.ideas.get(here)) is not None:
                problem, here = idea.problem, idea.parent
            else:
                return
        if problem is not None:
            yield problem

    def ancestors(self, variant: str) -> list[str]:
        """The variants that ``variant`` descends from, itself first, its first kernel last."""
        return [node for node in self.lineage(variant) if node in self.variants]

    def branch(self, node: str) -> set[str]:
        """All ideas and variants at or below ``node``."""
        found = {node} & (self.ideas.keys() | self.variants.keys())
        waiting = [node]
        while waiting:
            fresh = [other for other in self.below.get(waiting.pop(), ()) if other not in found]
            found.update(fresh)
            waiting += fresh
        return found

    def variants_of(self, problem: str) -> Iterator[VariantState]:
        found = self.problems.get(problem)
        return (self.variants[variant] for variant in (found.variants if found is not None else ()))

    def standing_order(self, problem: str, count: int | None = None) -> list[VariantState]:
        """``leaders`` as a person ranks them: the best first, then in the order of the last heat, where kernels were
        timed side by side; those that were not in it stand where their own factor puts them against its winner's."""
        return standing_order(self, problem, count)

    def leaders(self, problem: str, count: int | None = None) -> list[VariantState]:
        """Correct, unpruned variants of a problem, fastest first; the first ``count`` of them."""
        found = self.problems.get(problem)
        ranking = found.ranking if found is not None else []
        return [self.variants[name] for name in islice((n for _, n in ranking if not self.is_pruned(n)), count)]

    def in_flight(self) -> list[VariantState]:
        """Variants without a verdict, oldest first."""
        return [self.variants[variant] for variant in self.flight]

    def best_of_round(self, problem: str, number: int) -> float | None:
        """Factor over eager of the round's leader. Where it ran in the last heat with the problem's best, it is that
        one's, by as much less as it took longer: two factors of different minutes need not be in the heat's order."""
        leader = self.leader_of_round(problem, number)
        factor = leader.speedup if leader is not None else None
        found = self.problems.get(problem)
        if leader is None or factor is None or found is None or not found.standings or found.best == leader.id:
            return factor
        best = self.variants.get(found.best or "")
        ratios = {standing.variant: standing.ratio for standing in found.standings}
        if best is None or not best.speedup or not ratios.get(best.id) or not ratios.get(leader.id):
            return factor
        return best.speedup * ratios[best.id] / ratios[leader.id]

    def leader_of_round(self, problem: str, number: int) -> VariantState | None:
        """Who stands for a round: the problem's best, if it is one of its kernels; else ``RoundState.best``."""
        found, round_ = self.problems.get(problem), round_of(self, problem, number)
        best = self.variants.get(found.best) if found is not None and found.best is not None else None
        if best is not None and best.round == number:
            return best
        return self.variants.get(round_.best) if round_ is not None and round_.best is not None else None

    @property
    def finished(self) -> bool:
        return self.engine is not None and self.engine.stopped == "finished"


def fold(recorded: Iterable[Recorded]) -> SessionState:
    """The state after all of ``recorded``."""
    state = SessionState()
    state.apply_all(recorded)
    return state
