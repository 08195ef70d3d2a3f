"""The templates that write all groups of a problem. The recipe of a problem holds the recipes of its kernels."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

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

MAX_TUNED = 8
"""How many kernels of a file transformations change: those with the largest share of the cost."""
_MARK = "@"
"""Separates the name of a transformation from the number of the kernel that it changes."""


class GroupsProgram(Program, frozen=True):
    """A problem as groups. The plan depends on the language, because not every template supports every program."""

    spec: ProblemSpec


class Groups(Template):
    """All groups in one file. ``plan_of`` partitions a problem."""

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
        starts = [kind.template.starts(kind.program, kind.spec, device) for kind in plan.kinds]
        found = []
        for number in range(max(map(len, starts))):
            chosen = [each[min(number, len(each) - 1)] for each in starts]
            recipe = Recipe(self.name, {}, ())
            for place, start in enumerate(chosen):
                recipe = recipe.with_(*_prefixed(place, start.recipe.choices, start.recipe.opened))
            found.append(Start(f"groups_{number}", _text(plan, chosen), recipe))
        return found

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        plan = self.plan(program)
        found = []
        for place in _costly(plan):
            kind, own = plan.kinds[place], _own(recipe, place, plan.kinds[place])
            for one in kind.template.transformations(kind.program, own, device):
                changes, opens = _prefixed(place, one.changes, one.opens)
                text = f"Kernel {place} ({kind.pattern}, {round(100 * plan.shares[place])} % of the traffic): {one.text}"
                gain = 1.0 / (1.0 - plan.shares[place] + plan.shares[place] / max(one.gain, 0.01))
                found.append(replace(one, name=f"{one.name}{_MARK}{place}", text=text, changes=changes, opens=opens,
                                     gain=gain))  # fmt: skip
        return found

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
    """Return the kernels that transformations change, in the order of the file."""
    ranked = sorted(range(len(plan.kinds)), key=lambda place: -plan.kinds[place].cost)
    return sorted(ranked[:MAX_TUNED])


def _prefixed(place: int, choices: Choices, opens: tuple[str, ...]) -> tuple[Choices, tuple[str, ...]]:
    named = {f"{place}.{choice}": value for choice, value in choices.items()}
    return named, tuple(f"{place}.{knob}" for knob in opens)


def _own(recipe: Recipe, place: int, kind: Kind) -> Recipe:
    """Return the recipe of one kernel."""
    start = f"{place}."
    choices = {name.removeprefix(start): value for name, value in recipe.choices.items() if name.startswith(start)}
    opened = tuple(name.removeprefix(start) for name in recipe.opened if name.startswith(start))
    return Recipe(kind.template.name, choices, opened)


def _text(plan: Plan, chosen: list[Start]) -> str:
    parts = "; ".join(f"{kind.pattern}: {start.text}" for kind, start in _shown(plan, chosen))
    return f"Compute the problem in {len(plan.steps)} groups, which hand on tensors through the workspace. {parts}"


def _shown(plan: Plan, chosen: list[Start]) -> list[tuple[Kind, Start]]:
    return [(plan.kinds[place], chosen[place]) for place in _costly(plan)[:3]]
