"""What a session is made of, as the fold keeps it: problems, rounds, ideas, variants, the engine."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from engine.events import AnswerMissing, Carried, SizesChecked, Stage, StopReason
from engine.models.protocol import Purpose
from engine.problem.spec import Form, ProblemSpec
from engine.verdict import Baseline, Standing, Verdict

MOVE = "move"
"""Key in the ``data`` of an idea from a catalogue: the name of its move."""


class VariantState(Struct):
    """One kernel source. ``stage`` is None before it is queued and after its verdict."""

    id: str
    idea: str
    problem: str
    round: int
    parent: str | None
    form: Form
    source: str
    proposer: str
    note: str
    data: dict[str, Any]
    written_at: float
    stage: Stage | None = "queued"
    stage_since: float = 0.0
    verdict: Verdict | None = None
    judged_at: float | None = None
    judged: int = 0
    carried: str | None = None
    dropped: str | None = None
    at_sizes: SizesChecked | None = None

    @property
    def was_judged(self) -> bool:
        """Whether it has a verdict: one that was pruned before has none."""
        return self.verdict is not None and self.verdict.status != "cancelled"

    @property
    def correct(self) -> bool:
        return self.verdict is not None and self.verdict.correct

    @property
    def speedup(self) -> float | None:
        verdict = self.verdict
        return verdict.speedup if verdict is not None and verdict.status == "correct" else None

    @property
    def kernel_ms(self) -> float | None:
        if self.verdict is None or self.verdict.kernel is None:
            return None
        return self.verdict.kernel.median_ms


class IdeaState(Struct):
    id: str
    problem: str
    round: int
    parent: str | None
    category: str
    text: str
    proposer: str
    data: dict[str, Any]
    proposed_at: float
    variants: list[str] = field(default_factory=list)
    waiting: str | None = None

    @property
    def move(self) -> str:
        """The name of its move in a proposer's catalogue, "" for an idea in words."""
        name = self.data.get(MOVE)
        return name if isinstance(name, str) else ""


class RoundState(Struct):
    """``best``: the leader of the round's own correct variants that are not pruned: the one with the best factor over
    eager, those apart that another of them has outrun in a heat (``engine.ranking.lead``)."""

    problem: str
    number: int
    parents: tuple[Carried, ...]
    started_at: float
    ideas: list[str] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    best: str | None = None
    finished_at: float | None = None
    survivors: tuple[Carried, ...] = ()
    dropped: tuple[Carried, ...] = ()
    standings: tuple[Standing, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.problem}/r{self.number}"


class ProblemState(Struct):
    """``ranking``: correct variants as (-speedup, id), fastest first, pruned ones among them. ``missing``: answers that
    proposers did not have, by purpose and subject, then by round. ``former``: who was the best before ``best`` and has
    not met it in a heat."""

    spec: ProblemSpec
    form: Form
    header: str
    added_at: float
    baselines: dict[str, Baseline] = field(default_factory=dict)
    floor_ms: float | None = None
    degenerate: str = ""
    """Which kernels that compute nothing pass every check, in words; "" where the problem is sound."""
    tightened: str = ""
    rounds: list[RoundState] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    ranking: list[tuple[float, str]] = field(default_factory=list)
    missing: dict[tuple[Purpose, str], dict[int, list[AnswerMissing]]] = field(default_factory=dict)
    best: str | None = None
    best_at: float = 0.0
    """Since when it is."""
    former: str | None = None
    finished: str | None = None
    standings: tuple[Standing, ...] = ()
    heat_at: float = 0.0
    """When the standings came."""

    @property
    def id(self) -> str:
        return self.spec.id

    def eager_ms(self, best: VariantState | None) -> float | None:
        """Eager's time beside ``best``, by which its factor goes; without one as it was when the problem was opened."""
        if best is not None and best.verdict is not None and best.verdict.reference is not None:
            return best.verdict.reference.median_ms
        eager = self.baselines.get("eager")
        return eager.timing.median_ms if eager is not None and eager.timing is not None else None


class EngineState(Struct):
    """What the events say of the engine; whether it lives is the lock's to say (``engine.session``)."""

    pid: int
    host: str
    version: str
    started_at: float
    sandbox: str
    stopped: StopReason | None = None
    message: str = ""
