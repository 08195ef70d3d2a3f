"""The templates that write the kernels for all groups of a problem.

A problem's recipe contains the recipes of its kernels.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import (
    Choice,
    Choices,
    Language,
    Program,
    Recipe,
    Start,
    Template,
    Transformation,
    Unsupported,
)
from engine.proposers.playbook.patterns.groups.file import program_file
from engine.proposers.playbook.patterns.groups.plan import Kind, Plan
from engine.proposers.playbook.transformations import catalog

MAX_TUNED = 8
"""Maximum number of kernels per file that transformations may change. The kernels with the largest shares of the cost
have priority.
"""
_MARK = "@"
"""Separator between the name of a transformation and the number of the kernel that it changes."""


class GroupsProgram(Program, frozen=True):
    """A problem to compute in groups. The plan depends on the language, because each language's templates support
    different programs.
    """

    spec: ProblemSpec


class Groups(Template):
    """A template that writes the kernels for all groups into one file. ``plan_of`` partitions a problem."""

    pattern = "groups"

    def __init__(self, language: Language, plan_of: Callable[[ProblemSpec, Language], Plan]) -> None:
        self.language = language
        self.name = f"groups_{language}"
        self._plan_of = plan_of

    def plan(self, program: Program) -> Plan:
        """Return the plan for ``program``. Raises ``Unsupported``."""
        assert isinstance(program, GroupsProgram), "the analysis chose the wrong pattern"
        return self._plan_of(program.spec, self.language)

    def refusal(self, program: Program) -> str | None:
        try:
            self.plan(program)
        except Unsupported as unsupported:
            return str(unsupported)
        return None

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        plan = self.plan(program)
        # First kernels that need a minimum tolerance apply only to problems with a single kernel.
        given = [
            [start for start in kind.template.starts(kind.program, kind.spec, device) if start.tolerance == 0]
            for kind in plan.kinds
        ]
        tuned = [_tuned(kind, starts[0].recipe, device) for kind, starts in zip(plan.kinds, given, strict=True)]
        first, last = [starts[0].recipe for starts in given], [starts[-1].recipe for starts in given]
        found: list[Start] = []
        for name, text, recipes in (("tuned", _TUNED, tuned), ("first", _FIRST, first), ("plain", _PLAIN, last)):
            recipe = self._joined(recipes)
            if all(recipe.choices != start.recipe.choices for start in found):
                found.append(Start(name, f"{_summary(plan)} {text}", recipe))
        return found

    def _joined(self, recipes: list[Recipe]) -> Recipe:
        """Combine the recipes of all kernels into one recipe."""
        joined = Recipe(self.name, {})
        for place, recipe in enumerate(recipes):
            joined = joined.with_(*_prefixed(place, recipe.choices, recipe.opened))
        return joined

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        plan = self.plan(program)
        found: list[Transformation] = []
        by_name: dict[str, list[Transformation]] = {}
        for place in _costly(plan):
            kind, share = plan.kinds[place], plan.shares[place]
            for one in kind.template.transformations(kind.program, _own(recipe, place, kind), device):
                changes, opens = _prefixed(place, one.changes, one.opens)
                text = f"Kernel {place} ({kind.pattern}, {round(100 * share)}% of the estimated time): {one.text}"
                gain = 1.0 / (1.0 - share + share / one.gain)
                made = Transformation(f"{one.name}{_MARK}{place}", one.category, text, changes, opens, gain, one.helps)
                found.append(made)
                by_name.setdefault(one.name, []).append(made)
        return [*found, *(_everywhere(name, each) for name, each in by_name.items() if len(each) > 1)]

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        plan = self.plan(program)
        found: dict[str, tuple[Choice, ...]] = {}
        for place in _costly(plan):
            kind = plan.kinds[place]
            for knob, values in kind.template.knobs(kind.program, _own(recipe, place, kind), device).items():
                found[f"{place}.{knob}"] = values
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        plan = self.plan(program)
        sources = [
            kind.template.emit(kind.program, _own(recipe, place, kind), kind.spec)
            for place, kind in enumerate(plan.kinds)
        ]
        return program_file(plan, sources, spec, self.language)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        safest = recipe
        for place, kind in enumerate(self.plan(program).kinds):
            own = kind.template.safer(kind.program, _own(recipe, place, kind))
            if own is not None:
                safest = safest.with_(*_prefixed(place, own.choices, own.opened))
        return None if safest.choices == recipe.choices else safest


def _costly(plan: Plan) -> list[int]:
    """Return the positions of the kernels that transformations may change, in file order."""
    ranked = sorted(range(len(plan.kinds)), key=lambda place: -plan.kinds[place].cost)
    return sorted(ranked[:MAX_TUNED])


def _prefixed(place: int, choices: Choices, opens: tuple[str, ...]) -> tuple[Choices, tuple[str, ...]]:
    named = {f"{place}.{choice}": value for choice, value in choices.items()}
    return named, tuple(f"{place}.{knob}" for knob in opens)


def _own(recipe: Recipe, place: int, kind: Kind) -> Recipe:
    """Extract the recipe of one kernel from the recipe of all kernels."""
    start = f"{place}."
    choices = {name.removeprefix(start): value for name, value in recipe.choices.items() if name.startswith(start)}
    opened = tuple(name.removeprefix(start) for name in recipe.opened if name.startswith(start))
    return Recipe(kind.template.name, choices, opened)


def _tuned(kind: Kind, recipe: Recipe, device: DeviceFact) -> Recipe:
    """Apply the most promising transformations that do not reduce precision.

    A first kernel with opened knobs already has its pattern's fastest known structure.
    """
    if recipe.opened:
        return recipe
    return catalog.tuned(kind.template, kind.program, recipe, device, lambda one: one.category != "precision")[0]


def _everywhere(name: str, each: list[Transformation]) -> Transformation:
    """Combine the transformations ``each``, which have the same name, into one."""
    changes = {choice: value for one in each for choice, value in one.changes.items()}
    opens = tuple(knob for one in each for knob in one.opens)
    places = ", ".join(one.name.rpartition(_MARK)[2] for one in each)
    own = each[0].text.partition(": ")[2]
    slowdown = 1.0 - sum(1.0 - 1.0 / one.gain for one in each)
    gain = 1.0 / max(slowdown, 0.05)
    return Transformation(f"{name}{_MARK}all", each[0].category, f"Kernels {places}: {own}", changes, opens, gain,
                          each[0].helps)  # fmt: skip


def _summary(plan: Plan) -> str:
    patterns = ", ".join(dict.fromkeys(plan.kinds[step.kind].pattern for step in plan.steps))
    return (
        f"Compute the problem in {len(plan.steps)} groups ({patterns}) with {len(plan.kinds)} different kernels. The "
        "kernels pass tensors to each other through the workspace."
    )


_TUNED = (
    "Begin with the most promising kernels, which already include every transformation that keeps the precision and "
    "has an expected gain of at least 10%."
)
_FIRST = "Begin with the first kernel of each pattern."
_PLAIN = "Begin with the simplest kernel of each pattern, which is easy to check by reading."
