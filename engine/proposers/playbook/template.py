"""What a template is: the emitter of one family in one language, with the moves and knobs that shape it.

A **recipe** names a template and makes every choice that the template leaves open. A **move** is an idea of the
catalogue: it changes some choices of a parent's recipe and *opens* knobs, that is, names the choices which
variants of the idea sample. A new family or language is a new subclass of :class:`Template`, registered in
``families/__init__.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from msgspec import Struct

from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.ir import Program
from engine.proposers.protocol import Category

Choice = int | str | bool
Choices = dict[str, Choice]


class Recipe(Struct, frozen=True):
    """A kernel in short: ``template`` (``Template.name``), all its ``choices``, and the ``opened`` knobs.

    Stored as JSON in ``VariantDraft.data["recipe"]``. ``choices`` always holds every key that the template
    reads, so that equal choices mean equal sources.
    """

    template: str
    choices: Choices
    opened: tuple[str, ...] = ()

    def with_(self, changes: Choices, opens: tuple[str, ...] = ()) -> Recipe:
        """This recipe with ``changes`` made and ``opens`` added to the opened knobs."""
        opened = tuple(dict.fromkeys((*self.opened, *opens)))
        return Recipe(self.template, {**self.choices, **changes}, opened)


class First(Struct, frozen=True):
    """A starting point for round 0: a plain recipe and the idea, in prose, that it stands for."""

    name: str
    text: str
    recipe: Recipe


Bound = Literal["memory", "compute", "latency", "any"]


class Move(Struct, frozen=True):
    """One entry of the catalogue, fitted to a parent's recipe.

    ``changes`` are made to the parent's choices; ``opens`` are the knobs that variants of this idea sample.
    ``gain`` is the expected time of the parent / time of the child as a guess before any measurement, 1.0 for
    none; ``helps`` says which bottleneck it addresses, so that it is preferred on kernels that have it.
    """

    name: str
    category: Category
    text: str
    changes: Choices
    opens: tuple[str, ...] = ()
    gain: float = 1.1
    helps: Bound = "any"


class Template(ABC):
    """The emitter of one family in one language. Stateless; every method is pure and deterministic."""

    name: str
    """Unique, for example ``rows_cpp``."""
    family: Literal["pointwise", "rows"] | str
    language: Literal["cpp", "cu"]

    def refusal(self, program: Program) -> str | None:
        """Why this template has nothing for a program of its family, in words that follow "because", or None."""
        return None

    @abstractmethod
    def first(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[First]:
        """Plain starting points, the most straightforward first. At least one."""

    @abstractmethod
    def moves(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Move]:
        """Moves that apply to ``recipe`` and change it."""

    @abstractmethod
    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        """Legal values of the knobs that matter for ``recipe``, in order (neighbours are similar kernels)."""

    @abstractmethod
    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        """The kernel source. It defines ``launch`` as ``engine.problem.header`` declares it."""

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        """``recipe`` in more exact arithmetic, for a kernel whose results were wrong; None if there is none."""
        return None
