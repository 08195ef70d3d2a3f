"""The nodes in a session's state: problems, rounds, ideas, variants and the engine."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from engine.problem.spec import Language, ProblemSpec
from engine.session.records.events import (
    BY_HAND,
    LARGER_LIMIT,
    AnswerMissing,
    Profiled,
    Selected,
    SizesChecked,
    SourceRepeated,
    StartupStep,
    StopReason,
    TurnEnd,
)
from engine.session.records.model_calls import Purpose
from engine.session.records.verdict import Baseline, Stage, Standing, Verdict
from engine.session.records.verdict_text import counts_by_low_end

TRANSFORMATION = "move"
"""Key in an idea's stored ``data`` for the name of its transformation."""
SEEDED = "seeded"
"""Key in an idea's ``data`` that marks ideas from a person or from a warm start. Such ideas do not count toward the
round's number of ideas.
"""
SEED_FILE = "file"
"""Key in an idea's ``data`` for the file from which a person seeded the idea's first kernel."""
WARM_START = "bank"
"""Stored proposer name of ideas from a warm start."""


class VariantState(Struct):
    """A variant: a kernel's source and its progress toward a verdict. ``stage`` is None after the verdict.

    ``device``: the device of another host that works on the kernel; "" if this machine does.
    """

    id: str
    idea: str
    problem: str
    round: int
    parent: str | None
    language: Language
    source: str
    proposer: str
    note: str
    data: dict[str, Any]
    written_at: float
    stage: Stage | None = "queued"
    stage_since: float = 0.0
    device: str = ""
    verdict: Verdict | None = None
    judged_at: float | None = None
    judged_seq: int = 0
    judged: int = 0
    earlier: tuple[Verdict, ...] = ()
    """Verdicts that a later verdict replaced, oldest first."""
    selected_because: str | None = None
    dropped: str | None = None
    at_sizes: SizesChecked | None = None
    profile: Profiled | None = None
    """The kernel's hardware counters."""

    @property
    def was_judged(self) -> bool:
        """Whether the judge evaluated the kernel. False for a kernel that was pruned before its evaluation."""
        return self.verdict is not None and self.verdict.status != "cancelled"

    @property
    def correct(self) -> bool:
        return self.verdict is not None and self.verdict.correct

    @property
    def is_undecided(self) -> bool:
        """Whether no round has selected or dropped the kernel."""
        return self.selected_because is None and self.dropped is None

    @property
    def speedup(self) -> float | None:
        verdict = self.verdict
        return verdict.speedup if verdict is not None and verdict.status == "correct" else None

    @property
    def kernel_ms(self) -> float | None:
        if self.verdict is None or self.verdict.kernel is None:
            return None
        return self.verdict.kernel.median_ms

    @property
    def sure_speedup(self) -> float:
        """The speedup that the ranking uses: the verdict's speedup or the low end of its interval.

        The ranking uses one number per kernel, so the order of verdicts does not affect which kernel is the best.
        """
        verdict = self.verdict
        if verdict is not None and counts_by_low_end(verdict):
            return verdict.speedup_low or verdict.speedup or 0.0
        return self.speedup or 0.0

    def beats(self, best: VariantState, *, timed: bool) -> bool:
        """Return whether this kernel beats ``best``. If ``timed`` (a runoff took place), the kernel's time must also be
        lower.
        """
        ahead = self.sure_speedup > best.sure_speedup
        return ahead and (not timed or (self.kernel_ms or 0.0) < (best.kernel_ms or float("inf")))


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
    repeats: list[SourceRepeated] = field(default_factory=list)
    """Replies for this idea that repeated the source of an earlier kernel for the problem."""

    @property
    def transformation(self) -> str:
        """Name of the idea's transformation; "" for a free-text idea."""
        name = self.data.get(TRANSFORMATION)
        return name if isinstance(name, str) else ""

    @property
    def needs_kernel(self) -> bool:
        """Whether the idea is waiting for a person to write its kernel. If a proposer found no kernel for its own idea,
        ``waiting`` says why, but no kernel will follow.
        """
        return self.waiting is not None and self.proposer == BY_HAND

    @property
    def by_hand(self) -> bool:
        """Whether a person wrote or requested the idea. A proposer may write the idea's kernels."""
        return self.proposer == BY_HAND or (bool(self.data.get(SEEDED)) and self.proposer != WARM_START)


class RoundState(Struct):
    """A problem's round.

    ``reached`` is the problem's best kernel after the round and its last runoff. If this kernel belongs to the round,
    it leads the round (``SessionData.leader_of_round``). Otherwise, the leader is the round's fastest kernel in its
    runoff. If there is none, ``best`` leads: the round's correct, unpruned variant with the highest speedup. A variant
    does not qualify if it lost a runoff of this or an earlier round (``engine.session.state.ranking.lead``). ``pruned``
    lists the nodes that were pruned when the engine determined ``reached``. If a restored kernel below one of them
    beats ``reached``, ``best`` leads. ``speedup`` is the leader's comparable speedup at that time, or None without a
    leader. Later runoffs may correct this figure (``engine.session.state.comparable``).
    """

    problem: str
    number: int
    parents: tuple[Selected, ...]
    started_at: float
    ideas: list[str] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    best: str | None = None
    reached: str | None = None
    pruned: tuple[str, ...] = ()
    speedup: float | None = None
    finished_at: float | None = None
    selected: tuple[Selected, ...] = ()
    dropped: tuple[Selected, ...] = ()
    standings: tuple[Standing, ...] = ()
    runoff_seq: int = 0
    """Sequence number of the event with ``standings``; see ``ProblemState.runoff_seq``."""

    @property
    def id(self) -> str:
        return f"{self.problem}/r{self.number}"


class ProblemState(Struct):
    """A problem with its results. ``ranking`` lists correct variants, pruned or not, as (-speedup, id), fastest first.
    ``missing`` lists failed requests to proposers by purpose and subject, then by round. ``former`` is the previous
    best kernel; None after a runoff has compared it with ``best``.
    """

    spec: ProblemSpec
    language: Language
    header: str
    added_at: float
    baselines: dict[str, Baseline] = field(default_factory=dict)
    compile_skipped: str = ""
    """Why the engine skipped the ``torch.compile`` baseline; "" if unknown. A new time limit or a canceled stop clears
    the reason.
    """
    sol_ms: float | None = None
    degenerate: str = ""
    """Trivial outputs that pass every check of the problem, as text; "" if none passes."""
    tightened: str = ""
    rounds: list[RoundState] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    ranking: list[tuple[float, str]] = field(default_factory=list)
    missing: dict[tuple[Purpose, str], dict[int, list[AnswerMissing]]] = field(default_factory=dict)
    best: str | None = None
    best_with_lead: str | None = None
    """The newest best kernel with a measurable lead over the best kernels before it. A kernel that ties with it may
    have become ``best`` later (``engine.session.state.ranking.note_lead``).
    """
    lead_at: float = 0.0
    """The time at which ``best_with_lead`` took its lead."""
    tied_with: str | None = None
    """The earlier best kernel over which ``best`` has no measurable lead; None if ``best`` has a lead."""
    former: str | None = None
    finished: str | None = None
    standings: tuple[Standing, ...] = ()
    runoff_at: float = 0.0
    """Time at which the last runoff ended."""
    runoff_seq: int = 0
    """Sequence number of the last runoff's event, for comparison with a variant's ``judged_seq``. Times are not
    comparable, because a later engine's clock may be behind an earlier engine's clock.
    """
    relative: dict[str, tuple[str, float]] = field(default_factory=dict)
    """For each kernel that a runoff timed: the kernel whose figures to scale, and the ratio of the two times
    (``engine.session.state.comparable``).
    """
    languages: tuple[Language, ...] = ()
    """Languages in which the search writes kernels, the problem's own first."""
    cannot_write: str | None = None
    """Why no proposer in the config can write a kernel for the problem, which then stays open for seeded kernels. None
    means that a proposer can write one.
    """
    remedies: tuple[str, ...] = ()
    """Remedies for ``cannot_write``: sentences that say what a person can do."""
    turn_seconds: float = 0.0
    """Engine time of the problem's ended turns, in seconds."""
    turns: int = 0
    """Number of the problem's turns, including an open turn."""
    turn_end: TurnEnd | None = None
    """Why the problem's last turn ended; None before the first turn's end and during a turn."""
    turn_ended_at: float = 0.0

    @property
    def id(self) -> str:
        return self.spec.id

    def eager_ms(self, best: VariantState | None) -> float | None:
        """Return eager's time at the speed that the machine had during the verdict on ``best``, for tables.

        This is the kernel's time, multiplied by the speedup. It can differ slightly from the median of eager's times,
        because the speedup is the median ratio of paired calls. Without a best kernel, return the eager baseline's
        time.
        """
        if best is not None and best.speedup is not None and best.kernel_ms is not None:
            return best.kernel_ms * best.speedup
        eager = self.baselines.get("eager")
        return eager.timing.median_ms if eager is not None and eager.timing is not None else None


class TurnState(Struct, frozen=True):
    """The open turn: the search works on ``problem`` alone until ``minutes`` of engine time have passed.

    ``began_s`` is the session's engine time at the start, in seconds, and ``round`` the problem's round at that time.
    ``stopped_s`` is the engine time at which a new engine started; None once this engine continues the turn. The time
    from the engine's start to that point does not count toward the turn. ``continued``: whether a new engine has
    continued the turn, which means that it has opened the problem.
    """

    problem: str
    minutes: float
    began_s: float
    round: int
    stopped_s: float | None = None
    continued: bool = False


class EngineState(Struct):
    """The engine's state according to the events. Only the engine's lock shows whether the engine is alive
    (``engine.session.store``).
    """

    pid: int
    host: str
    version: str
    started_at: float
    sandbox: str
    stopped: StopReason | None = None
    message: str = ""
    startup: StartupStep | None = None
    """The newest step of the startup. Engines of older versions record no steps."""

    @property
    def stopped_by_time(self) -> bool:
        """Whether the time budget, not a spending limit, ended the engine."""
        return self.stopped == "budget" and not self.message.endswith(LARGER_LIMIT)
