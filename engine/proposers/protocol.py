"""The protocol that every proposer speaks: ideas for a parent, variants for an idea, a fix for a failure.

A proposer sees only what these frozen structs carry; it never touches the session file or the evaluator.
It must be deterministic in its arguments where it can be (the playbook is: same request, same answer).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from engine.events import Carried, DeviceFact
from engine.problem.spec import Form, ProblemSpec
from engine.verdict import Verdict

Category = Literal["memory", "latency", "precision", "compute", "parallelism", "control", "first", "other"]
"""The six classes of ideas of Stanford CRFM's "fast kernels" (memory access; asynchrony and latency
hiding; data type and precision; compute and instruction; parallelism and occupancy; control flow and
loops), ``first`` for a first kernel and ``other`` for what a person seeds."""

Role = Literal["ideas", "code", "fixes"]
"""What a proposer may be asked for."""
ALL_ROLES: frozenset[Role] = frozenset(("ideas", "code", "fixes"))

CALL = "call"
"""Key in the ``data`` of ideas and kernels of a language model: the name of the call that they came from."""
NUMBER = "number"
"""Key in such a kernel's ``data``: which of its idea's kernels it is, from 0."""
UNUSABLE = "unusable"
"""Key in such a kernel's ``data``: why the reply held none. Its source is then the reply's beginning."""

CATEGORY_NAMES: dict[str, str] = {
    "memory": "memory access",
    "latency": "asynchrony and latency hiding",
    "precision": "data type and precision",
    "compute": "compute and instruction",
    "parallelism": "parallelism and occupancy",
    "control": "control flow and loops",
    "first": "first kernel",
    "other": "other",
}


class Kernel(Struct, frozen=True):
    """A kernel that already has a verdict: the parent of an idea, or a sibling tried before.

    ``idea``: the text of the idea that it was written for.
    """

    variant: str
    source: str
    form: Form
    verdict: Verdict
    proposer: str
    data: dict[str, Any] = {}
    idea: str = ""


class TriedIdea(Struct, frozen=True):
    """An idea of this problem that was tried, and the best factor over eager it reached (None: nothing correct).

    ``parent_speedup``: the factor of the kernel it worked on. ``failure``: why nothing was correct, in a sentence.
    """

    idea: str
    parent: str | None
    category: str
    text: str
    speedup: float | None
    data: dict[str, Any] = {}
    parent_speedup: float | None = None
    failure: str = ""


class BankKernel(Struct, frozen=True):
    """The best kernel of another problem of the session; ``idea`` is the text of the idea that made it."""

    problem: str
    variant: str
    form: Form
    source: str
    speedup: float
    idea: str


class Demands(Struct, frozen=True):
    """What the judge will ask of every kernel. ``tolerance``: relative to an output's size; ``exact``: lower
    precision than fp32 does not count; ``threads``: of a CPU kernel."""

    tolerance: float = 1e-2
    exact: bool = False
    threads: int = 1


class Task(Struct, frozen=True):
    """What a proposer is told of the problem: spec, header, form, the device it must run on and its floor."""

    problem: ProblemSpec
    header: str
    form: Form
    device: DeviceFact
    floor_ms: float | None
    eager_ms: float | None
    compile_ms: float | None = None
    demands: Demands = Demands()


class Board(Struct, frozen=True):
    """How the search of the problem stands: the open round, ideas tried and kernels judged so far, both oldest first,
    and the best kernels of other problems. ``lineage``: the kernels that the parent descends from, itself first."""

    round: int = 0
    tried: tuple[TriedIdea, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    bank: tuple[BankKernel, ...] = ()
    lineage: tuple[str, ...] = ()


class IdeaDraft(Struct, frozen=True):
    """``idea``: its id, "" before the search gave it one."""

    category: str
    text: str
    data: dict[str, Any] = {}
    idea: str = ""


class VariantDraft(Struct, frozen=True):
    """``source`` is the whole kernel file. ``note`` is short: what distinguishes it from its siblings.

    ``unusable``: why a model's reply holds no kernel; ``source`` is then what it said instead, and nothing is built.
    """

    source: str
    form: Form
    note: str = ""
    data: dict[str, Any] = {}
    unusable: str = ""


class CatalogueEntry(Struct, frozen=True):
    """A move that a person may seed by name."""

    name: str
    category: str
    text: str


class NoAnswer(Exception):
    """A proposer could not answer now: its server failed, or its reply was of no use. Worth asking again later.

    ``call``: the name of the call whose reply was of no use, "" where none came. ``lasting``: it is of no use to ask
    this proposer again (a wrong key, no such model).
    """

    def __init__(self, message: str, call: str = "", *, lasting: bool = False) -> None:
        super().__init__(message)
        self.call, self.lasting = call, lasting


class Spent(Exception):
    """A limit forbids to ask. ``scope``: whose limit it is; a model's concerns its own questions only."""

    def __init__(self, message: str, scope: Literal["session", "problem", "model"]) -> None:
        super().__init__(message)
        self.scope = scope


class Proposer(Protocol):
    """Writes ideas and variants. Whatever it raises counts as no answer now: it is asked again in a later round."""

    name: str
    reads_prose: bool
    """Whether a free-text idea of a person, or of another proposer, can be turned into kernels by this proposer."""
    roles: frozenset[Role]

    @property
    def awaited(self) -> int:
        """Questions that wait for a person's reply."""
        ...

    @property
    def busy(self) -> bool:
        """Whether it has questions open that will be answered without a person."""
        ...

    def refusal(self, task: Task) -> str | None:
        """One sentence why this proposer has nothing for the problem, or None."""
        ...

    def catalogue(self, task: Task) -> tuple[CatalogueEntry, ...]:
        """Moves that a person may seed by name, for this problem."""
        ...

    def parents(self, problem: str, round_number: int) -> tuple[Carried, ...] | None:
        """The kernels that a round must work on where this proposer repeats another search; None: the best ones."""
        ...

    async def ideas(self, task: Task, parent: Kernel | None, board: Board, count: int, seed: int) -> list[IdeaDraft]:
        """Up to ``count`` new ideas for ``parent``; without one, how to write a first kernel from the reference alone.

        Fewer or none when it has run dry.
        """
        ...

    def variants(
        self, task: Task, idea: IdeaDraft, parent: Kernel | None, board: Board, numbers: Sequence[int], seed: int
    ) -> AsyncIterator[VariantDraft]:
        """Kernels for ``idea``, as they are ready: at most one for each of ``numbers``, its place in the idea."""
        ...

    async def fix(
        self, task: Task, idea: IdeaDraft, failed: Kernel, board: Board, turn: int, seed: int
    ) -> VariantDraft | None:
        """A repaired kernel after a build error or a wrong result, or None if it has none. ``turn`` counts from 1."""
        ...

    async def close(self) -> None:
        """Release what it holds. Idempotent."""
        ...
