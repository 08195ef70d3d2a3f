"""The protocol that every proposer speaks: ideas for a parent, variants for an idea, a fix for a failure.

A proposer sees only what these frozen structs carry; it never touches the session file or the evaluator.
It must be deterministic in its arguments where it can be (the playbook is: same request, same answer).
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from msgspec import Struct

from engine.events import DeviceFact
from engine.problem.spec import Form, ProblemSpec
from engine.verdict import Verdict

Category = Literal["memory", "latency", "precision", "compute", "parallelism", "control", "first", "other"]
"""The six classes of ideas of Stanford CRFM's "fast kernels" (memory access; asynchrony and latency
hiding; data type and precision; compute and instruction; parallelism and occupancy; control flow and
loops), ``first`` for a first kernel and ``other`` for what a person seeds."""

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
    """A kernel that already has a verdict: the parent of an idea, or a sibling tried before."""

    variant: str
    source: str
    form: Form
    verdict: Verdict
    proposer: str
    data: dict[str, Any] = {}


class TriedIdea(Struct, frozen=True):
    """An idea of this problem that was tried, and the best factor over eager it reached (None: nothing correct)."""

    idea: str
    parent: str | None
    category: str
    text: str
    speedup: float | None
    data: dict[str, Any] = {}


class Task(Struct, frozen=True):
    """What a proposer is told of the problem: spec, header, form, the device it must run on and its floor."""

    problem: ProblemSpec
    header: str
    form: Form
    device: DeviceFact
    floor_ms: float | None
    eager_ms: float | None


class IdeaDraft(Struct, frozen=True):
    category: str
    text: str
    data: dict[str, Any] = {}


class VariantDraft(Struct, frozen=True):
    """``source`` is the whole kernel file. ``note`` is short: what distinguishes it from its siblings."""

    source: str
    form: Form
    note: str = ""
    data: dict[str, Any] = {}


class CatalogueEntry(Struct, frozen=True):
    """A move that a person may seed by name."""

    name: str
    category: str
    text: str


class Proposer(Protocol):
    """Writes ideas and variants."""

    name: str
    reads_prose: bool
    """Whether a free-text idea of a person can be turned into kernels by this proposer."""

    def refusal(self, task: Task) -> str | None:
        """One sentence why this proposer has nothing for the problem, or None."""
        ...

    def catalogue(self, task: Task) -> tuple[CatalogueEntry, ...]:
        """Moves that a person may seed by name, for this problem."""
        ...

    async def first_ideas(self, task: Task, count: int, seed: int) -> list[IdeaDraft]:
        """Ideas of round 0: how to write the first kernels from the reference alone."""
        ...

    async def ideas(
        self, task: Task, parent: Kernel, tried: tuple[TriedIdea, ...], count: int, seed: int
    ) -> list[IdeaDraft]:
        """Up to ``count`` new ideas for ``parent``, told what was tried. Fewer or none when it has run dry."""
        ...

    async def variants(
        self, task: Task, idea: IdeaDraft, parent: Kernel | None, siblings: tuple[Kernel, ...], count: int, seed: int
    ) -> list[VariantDraft]:
        """Up to ``count`` kernels for ``idea``; ``siblings`` are kernels of this problem judged so far."""
        ...

    async def fix(self, task: Task, idea: IdeaDraft, failed: Kernel, seed: int) -> VariantDraft | None:
        """A repaired kernel after a build error or a wrong result, or None if it has none."""
        ...
