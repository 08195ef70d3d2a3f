"""The playbook's vocabulary: program, recipe, transformation, template, and pattern.

A **pattern** is a class of problems that one kind of **program** describes. A **template** writes one pattern's kernels
in one language. A **recipe** names a template and makes every choice that the template leaves open. A
**transformation** changes some choices of a parent's recipe and *opens* knobs, which are choices that differ
between variants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.categories import Category

Choice = int | str | bool
Choices = dict[str, Choice]
Language = Literal["cpp", "cu"]
"""Languages in which the playbook writes kernels, under the names that sessions store."""


class Unsupported(Exception):
    """The playbook does not support the problem. The exception's message is a clause that completes "because ..."."""


class Program(Struct, frozen=True):
    """The computation that a pattern recognized in a problem. Each pattern defines a subclass of ``Program``."""


class Recipe(Struct, frozen=True):
    """The choices that determine a kernel: ``template`` (``Template.name``), ``choices``, and the ``opened`` knobs.

    ``VariantDraft.data["recipe"]`` stores the recipe as JSON. ``choices`` contains every key that the template reads.
    Therefore equal choices produce equal sources. Numbers are plain integers: a choice computed from a named size loses
    the size's name.
    """

    template: str
    choices: Choices
    opened: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any(isinstance(value, int) and type(value) not in (int, bool) for value in self.choices.values()):
            force_setattr(self, "choices", {key: _plain(value) for key, value in self.choices.items()})

    def with_(self, changes: Choices, opens: tuple[str, ...] = ()) -> Recipe:
        """Return a copy of this recipe with ``changes`` applied and ``opens`` added to the opened knobs."""
        opened = tuple(dict.fromkeys((*self.opened, *opens)))
        return Recipe(self.template, {**self.choices, **changes}, opened)


def _plain(value: Choice) -> Choice:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Start(Struct, frozen=True):
    """A first kernel for round 0: a recipe, and the idea behind the recipe in prose.

    ``tolerance`` is the smallest tolerance that the kernel's rounding meets, or 0 if the kernel computes in the
    problem's precision.
    """

    name: str
    text: str
    recipe: Recipe
    tolerance: float = 0.0


Bound = Literal["memory", "compute", "latency", "any"]


class Transformation(Struct, frozen=True):
    """A change that applies to a parent's recipe.

    Args:
        name: The transformation's identifier in sessions and on the command line. Never rename a transformation.
        text: The idea in prose: what limits the parent, and how to remove that limit.
        changes: Choices that differ from the parent's choices.
        opens: Knobs whose values differ between variants of this idea.
        gain: The expected ratio of the parent's time to the child's time, before any measurement; 1.0 means no gain.
        helps: The bottleneck that the transformation addresses. The playbook ranks the transformation higher for
            kernels with this bottleneck.
        tolerance: The smallest tolerance that the change's rounding meets; 0 if the change keeps the problem's
            precision.
    """

    name: str
    category: Category
    text: str
    changes: Choices
    opens: tuple[str, ...] = ()
    gain: float = 1.1
    helps: Bound = "any"
    tolerance: float = 0.0


class Template(ABC):
    """Write the kernels of one pattern in one language. A template is stateless, and every method is pure and
    deterministic.
    """

    name: str
    """The template's unique name, such as ``rows_cpp``. Sessions store this name."""
    pattern: str
    language: Language

    def refusal(self, program: Program) -> str | None:
        """Return the reason why this template does not support ``program``; None if it does. The reason completes
        "because ...".
        """
        return None

    @abstractmethod
    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        """Return at least one first kernel. In round 0, the playbook proposes them in this order."""

    @abstractmethod
    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        """Return the transformations that apply to ``recipe`` and change the recipe."""

    @abstractmethod
    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        """Return the legal values of each knob that affects ``recipe``, ordered so that neighbors yield similar
        kernels.
        """

    @abstractmethod
    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        """Return the kernel source, which defines ``launch`` as ``engine.problem.c_header`` declares it."""

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        """Return ``recipe`` with more exact arithmetic, to repair a kernel with wrong outputs; None if there is no such
        recipe.
        """
        return None


class Pattern(ABC):
    """A class of problems, with a template per language. ``patterns.PATTERNS`` lists all patterns."""

    name: str
    templates: tuple[Template, ...]

    @abstractmethod
    def recognize(self, spec: ProblemSpec) -> Program | None:
        """Return the program for ``spec``, or None if the problem does not match this pattern. Raises
        ``Unsupported``.
        """
