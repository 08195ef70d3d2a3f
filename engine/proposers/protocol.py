"""The protocol that all proposers implement: ideas for a parent, kernels for an idea, and repairs of failed kernels.

A proposer sees only the frozen structs in this file, never the session file or the evaluator. If possible, a proposer's
answers depend only on its methods' arguments. The playbook's answers do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from engine.config.roles import Role
from engine.devices.fact import DeviceFact
from engine.problem.spec import Language, ProblemSpec
from engine.session.records.counters import KernelCounters
from engine.session.records.events import Selected
from engine.session.records.verdict import Verdict
from engine.session.worked_ideas import WorkedIdea

ALL_ROLES: frozenset[Role] = frozenset(("ideas", "code", "fixes"))

CALL = "call"
"""Key in the ``data`` of a language model's idea or kernel. The value names the call that produced the idea or
kernel.
"""
NUMBER = "number"
"""Key in the ``data`` of a language model's kernel. The value is the kernel's index within its idea."""
UNUSABLE = "unusable"
"""Key in a kernel's ``data`` if a model's reply contains no kernel. The value says why. In that case, ``source`` is the
start of the reply.
"""
LANGUAGE = "language"
"""Key in an idea's ``data`` if its problem has several languages. The value is the language of the idea's kernels."""


class Kernel(Struct, frozen=True):
    """A kernel with a verdict: an idea's parent, or an earlier kernel for the problem.

    ``idea`` is the text of the kernel's idea. ``counters`` are the kernel's hardware counters, or () if unknown.
    ``runoff_ratio`` is the kernel's time / the fastest kernel's time in the problem's latest runoff, or None if the
    kernel was not in this runoff.
    """

    variant: str
    source: str
    language: Language
    verdict: Verdict
    proposer: str
    data: dict[str, Any] = {}
    idea: str = ""
    counters: tuple[KernelCounters, ...] = ()
    runoff_ratio: float | None = None
    over_compile: float | None = None
    """The speedup over ``torch.compile``; None if unknown."""


class TriedIdea(Struct, frozen=True):
    """An idea with judged kernels. ``speedup`` is the kernels' best speedup over eager, or None if no kernel is
    correct.

    ``parent_speedup`` is the speedup of the idea's parent. ``failure`` says why no kernel was correct.
    """

    idea: str
    parent: str | None
    category: str
    text: str
    speedup: float | None
    data: dict[str, Any] = {}
    parent_speedup: float | None = None
    failure: str = ""


class ExampleKernel(Struct, frozen=True):
    """An example for a model: the best kernel of another problem in the session. ``idea`` is the text of that kernel's
    idea.
    """

    problem: str
    variant: str
    language: Language
    source: str
    speedup: float
    idea: str


class Demands(Struct, frozen=True):
    """The judge's requirements for kernels.

    ``tolerance``: the smallest tolerance of any output. ``exact``: whether the judge rejects arithmetic below fp32
    precision. ``threads``: number of threads for a CPU kernel.
    """

    tolerance: float = 1e-4
    exact: bool = False
    threads: int = 1


class Task(Struct, frozen=True):
    """A problem as proposers see it: specification, C header, language, target device, SOL and baselines.

    ``languages``: all languages in which the search writes kernels, ``language`` first. () means only ``language``.
    """

    problem: ProblemSpec
    header: str
    language: Language
    device: DeviceFact
    sol_ms: float | None
    eager_ms: float | None
    compile_ms: float | None = None
    demands: Demands = Demands()
    languages: tuple[Language, ...] = ()

    @property
    def allowed(self) -> tuple[Language, ...]:
        return self.languages or (self.language,)

    def in_language(self, language: object) -> Task:
        """Return the task for a kernel in ``language``, or this task if the search does not use ``language``."""
        if language == self.language or language not in self.allowed:
            return self
        return replace(self, language=language)


class Board(Struct, frozen=True):
    """A problem's search, as proposers see it. The search context contains the open round, all ideas and kernels
    (oldest first), and the best kernels of other problems. ``lineage`` lists the kernels from which the parent
    descends, starting with the parent. ``worked`` lists ideas that made kernels faster, for other problems or
    in earlier sessions.
    """

    round: int = 0
    tried: tuple[TriedIdea, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    examples: tuple[ExampleKernel, ...] = ()
    lineage: tuple[str, ...] = ()
    worked: tuple[WorkedIdea, ...] = ()


class IdeaDraft(Struct, frozen=True):
    """A proposed idea. ``idea`` is the idea's id, or "" before the search assigns an id."""

    category: str
    text: str
    data: dict[str, Any] = {}
    idea: str = ""


class VariantDraft(Struct, frozen=True):
    """A proposed kernel. ``source`` is the whole file. ``note`` briefly distinguishes the kernel from its siblings.

    ``unusable`` says why a model's reply contains no kernel. In that case, ``source`` is the start of the reply, which
    the builder ignores.
    """

    source: str
    language: Language
    note: str = ""
    data: dict[str, Any] = {}
    unusable: str = ""


class CatalogueEntry(Struct, frozen=True):
    """A transformation that a person may seed by name."""

    name: str
    category: str
    text: str


class NoAnswer(Exception):
    """A proposer has no answer now, because the model's server failed or the reply was unusable. The search repeats the
    request later.

    ``call`` names the call with the unusable reply, or is "" if there was no reply. ``lasting``: whether later requests
    to this proposer will also fail, for example because of an invalid key or an unknown model.
    """

    def __init__(self, message: str, call: str = "", *, lasting: bool = False) -> None:
        super().__init__(message)
        self.call, self.lasting = call, lasting


class Spent(Exception):
    """A spending limit forbids a request. ``scope`` names the limit."""

    def __init__(self, message: str, scope: Literal["session", "problem", "model"]) -> None:
        super().__init__(message)
        self.scope = scope


class Proposer(Protocol):
    """Write ideas and kernels. The search treats any exception as a missing answer. It repeats the request in a later
    round.
    """

    name: str
    reads_prose: bool
    """Whether this proposer can turn a free-text idea into kernels."""
    roles: frozenset[Role]

    @property
    def awaited(self) -> int:
        """Number of requests that are waiting for a person's reply."""
        ...

    @property
    def busy(self) -> bool:
        """Whether the proposer is working on requests that do not need a person's reply."""
        ...

    def refusal(self, task: Task) -> str | None:
        """Return a one-sentence reason why this proposer does not support the problem; None if it does."""
        ...

    def catalogue(self, task: Task) -> tuple[CatalogueEntry, ...]:
        """Return the transformations that a person may seed by name for this problem."""
        ...

    def parents(self, problem: str, round_number: int) -> tuple[Selected, ...] | None:
        """Return a round's recorded parents if this proposer replays a search; None if the search chooses parents."""
        ...

    async def ideas(self, task: Task, parent: Kernel | None, board: Board, count: int, seed: int) -> list[IdeaDraft]:
        """Propose up to ``count`` new ideas for ``parent`` or, without a parent, for a first kernel.

        Returns fewer ideas, or none, if the proposer runs out of ideas.
        """
        ...

    def variants(
        self, task: Task, idea: IdeaDraft, parent: Kernel | None, board: Board, numbers: Sequence[int], seed: int
    ) -> AsyncIterator[VariantDraft]:
        """Yield each kernel for ``idea`` when the kernel is ready, at most one per index in ``numbers``."""
        ...

    async def fix(
        self, task: Task, idea: IdeaDraft, failed: Kernel, board: Board, turn: int, seed: int
    ) -> VariantDraft | None:
        """Repair a failed kernel. Returns None if the proposer cannot repair the kernel. ``turn`` is the number of this
        repair, starting at 1.
        """
        ...

    async def close(self) -> None:
        """Release all resources. Idempotent."""
        ...
