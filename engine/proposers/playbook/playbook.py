"""The playbook as a proposer: families recognise the problem, templates write kernels, moves are its ideas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from engine.events import Carried
from engine.proposers.playbook import moves as catalogue_of
from engine.proposers.playbook import sampling
from engine.proposers.playbook.families import FAMILIES
from engine.proposers.playbook.ir import Program
from engine.proposers.playbook.template import Move, Recipe, Template
from engine.proposers.playbook.terms import Refused
from engine.proposers.protocol import (
    ALL_ROLES,
    Board,
    CatalogueEntry,
    IdeaDraft,
    Kernel,
    Task,
    VariantDraft,
)

FIRST = "first:"
"""Starts the ``data["move"]`` of ideas of round 0."""
MAX_DRAWS = 200
"""Settings tried for sources that differ before a recipe counts as explored."""


class Playbook:
    """Templates and moves written by hand: no network, no key, the same answer to the same question.

    ``IdeaDraft.data`` holds ``move`` (a name of the catalogue, several joined by "+", or "first:NAME") and
    ``parent_speedup``; an idea that a person seeds needs ``move`` only. ``VariantDraft.data`` holds ``recipe``.
    """

    name = "playbook"
    reads_prose = False
    roles = ALL_ROLES
    awaited = 0
    busy = False

    def refusal(self, task: Task) -> str | None:
        if task.form == "py":
            return f"the playbook writes C++ and CUDA C++, and {task.problem.name} has no C form"
        try:
            _known(task)
        except Refused as refused:
            return f"the playbook has no template for {task.problem.name}, because {refused}"
        return None

    def catalogue(self, task: Task) -> tuple[CatalogueEntry, ...]:
        try:
            template, program = _known(task)
        except Refused:
            return ()
        starts = [first.recipe for first in template.first(program, task.problem, task.device)]
        found = catalogue_of.all_moves(template, program, starts, task.device)
        return tuple(CatalogueEntry(move.name, move.category, move.text) for move in found)

    def parents(self, problem: str, round_number: int) -> tuple[Carried, ...] | None:
        return None

    async def ideas(self, task: Task, parent: Kernel | None, board: Board, count: int, seed: int) -> list[IdeaDraft]:
        template, program = _known(task)
        if parent is None:
            firsts = template.first(program, task.problem, task.device)
            return [IdeaDraft("first", first.text, {"move": f"{FIRST}{first.name}"}) for first in firsts[:count]]
        recipe = _recipe(parent.data, template)
        if recipe is None:
            return []
        here = {idea.data["move"] for idea in board.tried if idea.parent == parent.variant and "move" in idea.data}
        proposals = catalogue_of.proposals(
            template, program, recipe, task.device, here, board.tried, _floor_share(task, parent), seed
        )
        drafts: list[IdeaDraft] = []
        for name, made in proposals:
            if len(drafts) == count:
                break
            data: dict[str, Any] = {"move": name}
            if parent.verdict.speedup is not None:
                data["parent_speedup"] = parent.verdict.speedup
            drafts.append(IdeaDraft(made[0].category, _text(made), data))
        return drafts

    async def variants(
        self, task: Task, idea: IdeaDraft, parent: Kernel | None, board: Board, numbers: Sequence[int], seed: int
    ) -> AsyncIterator[VariantDraft]:
        template, program = _known(task)
        base = _base(template, program, task, idea, parent)
        if base is None:
            return
        measured = [
            sampling.Measured(recipe, _kernel_ms(kernel))
            for kernel in board.kernels
            if (recipe := _recipe(kernel.data, template)) is not None
        ]
        sources = {kernel.source for kernel in board.kernels}
        knobs = template.knobs(program, base, task.device)
        found = 0
        for _, recipe in zip(range(MAX_DRAWS), sampling.candidates(base, knobs, measured, seed), strict=False):
            if found == len(numbers):
                break
            source = template.emit(program, recipe, task.problem)
            if source not in sources:
                sources.add(source)
                found += 1
                yield _draft(template, source, recipe, _note(recipe, knobs))

    async def fix(
        self, task: Task, idea: IdeaDraft, failed: Kernel, board: Board, turn: int, seed: int
    ) -> VariantDraft | None:
        """A kernel with wrong results is tried again in the template's most exact arithmetic, if it has another."""
        template, program = _known(task)
        recipe = _recipe(failed.data, template)
        safer = template.safer(program, recipe) if recipe is not None and failed.verdict.status == "wrong" else None
        if safer is None:
            return None
        return _draft(template, template.emit(program, safer, task.problem), safer, "exact arithmetic")

    async def close(self) -> None:
        """It holds nothing."""


def _known(task: Task) -> tuple[Template, Program]:
    """The template and the program for the task. Raises ``Refused``."""
    reason: Refused | None = None
    for family in FAMILIES:
        try:
            program = family.recognise(task.problem)
        except Refused as refused:
            reason = reason or refused
            continue
        if program is not None:
            template = next((one for one in family.templates if one.language == task.form), None)
            if template is None:
                raise Refused(f"its family, {family.name}, has no template for .{task.form}")
            if (lack := template.refusal(program)) is not None:
                raise Refused(lack)
            return template, program
    raise reason or Refused("no family recognises it")


def _base(template: Template, program: Program, task: Task, idea: IdeaDraft, parent: Kernel | None) -> Recipe | None:
    """The recipe that ``idea`` asks for, its knobs as the move leaves them; None where the move does not apply."""
    name = str(idea.data.get("move", ""))
    firsts = template.first(program, task.problem, task.device)
    if name.startswith(FIRST):
        return next((first.recipe for first in firsts if f"{FIRST}{first.name}" == name), None)
    # A move that a person seeds on the problem itself starts from the last, and least naive, of the first kernels.
    start = firsts[-1].recipe if parent is None else _recipe(parent.data, template)
    found = catalogue_of.find(template, program, start, name, task.device) if start is not None and name else None
    return None if found is None else found[0]


def _recipe(data: dict[str, Any], template: Template) -> Recipe | None:
    """The recipe in a kernel's data, or None: written by hand, by another proposer, or for another template."""
    try:
        recipe = msgspec.convert(data.get("recipe"), Recipe)
    except msgspec.ValidationError:
        return None
    return recipe if recipe.template == template.name else None


def _draft(template: Template, source: str, recipe: Recipe, note: str) -> VariantDraft:
    return VariantDraft(source, template.language, note, {"recipe": msgspec.json.decode(msgspec.json.encode(recipe))})


def _note(recipe: Recipe, knobs: dict[str, Any]) -> str:
    return ", ".join(f"{knob.replace('_', ' ')} {recipe.choices[knob]}" for knob in recipe.opened if knob in knobs)


def _text(made: list[Move]) -> str:
    return " Together with it: ".join(move.text for move in made)


def _kernel_ms(kernel: Kernel) -> float | None:
    timing = kernel.verdict.kernel if kernel.verdict.correct else None
    return None if timing is None else timing.median_ms


def _floor_share(task: Task, parent: Kernel) -> float | None:
    if parent.verdict.floor_share is not None:
        return parent.verdict.floor_share
    if task.floor_ms is None or parent.verdict.kernel is None or not parent.verdict.kernel.median_ms:
        return None
    return task.floor_ms / parent.verdict.kernel.median_ms
