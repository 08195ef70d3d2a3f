"""The playbook as a proposer.

Input: the problem with its traced graph, the device, and all judged kernels. Output: ideas (first kernels, then
transformations of a parent) and whole kernel files in C++ or CUDA C++. The playbook needs neither a language model nor
a network.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from engine.problem.spec import LANGUAGE_NAMES, MODULES
from engine.proposers.playbook.base import Program, Recipe, Start, Template, Transformation, Unsupported
from engine.proposers.playbook.codegen.parameters import with_header_constants, with_own_parameters
from engine.proposers.playbook.patterns import PATTERNS
from engine.proposers.playbook.transformations import catalog, sampling
from engine.proposers.playbook.transformations.summary import difference
from engine.proposers.protocol import ALL_ROLES, Board, CatalogueEntry, IdeaDraft, Kernel, Task, VariantDraft
from engine.session.records.events import Selected

FIRST = "first:"
"""The prefix of ``data["move"]`` in the playbook's ideas of round 0."""
TUNED = "_tuned"
"""The name suffix of a first kernel that already includes all transformations with a large expected gain."""
MAX_DRAWS = 200
"""The maximum number of settings to try for one request. After these, the playbook returns fewer kernels than
requested.
"""


class Playbook:
    """A proposer that writes kernels from built-in templates. Identical requests produce identical answers.

    ``IdeaDraft.data`` contains ``move`` and ``parent_speedup``. ``move`` is the name of a transformation, several names
    joined by "+", or "first:NAME". An idea that a person seeds needs only ``move``. ``VariantDraft.data`` contains
    ``recipe``.
    """

    name = "playbook"
    reads_prose = False
    roles = ALL_ROLES
    awaited = 0
    busy = False

    def refusal(self, task: Task) -> str | None:
        task = _own(task)
        if task.language in MODULES:
            return (
                f"the playbook writes C++ and CUDA C++, but {task.problem.name} accepts neither"
                if task.problem.c_refusal is not None
                else "the playbook writes C++ and CUDA C++, but the config's languages exclude both"
            )
        try:
            _known(task)
        except Unsupported as unsupported:
            return f"the playbook has no template for {task.problem.name}, because {unsupported}"
        return None

    def catalogue(self, task: Task) -> tuple[CatalogueEntry, ...]:
        task = _own(task)
        try:
            template, program = _known(task)
        except Unsupported:
            return ()
        starts = [start.recipe for start in template.starts(program, task.problem, task.device)]
        found = catalog.reachable(template, program, starts, task.device)
        return tuple(CatalogueEntry(one.name, one.category, one.text) for one in found)

    def parents(self, problem: str, round_number: int) -> tuple[Selected, ...] | None:
        return None

    async def ideas(self, task: Task, parent: Kernel | None, board: Board, count: int, seed: int) -> list[IdeaDraft]:
        task = _own(task)
        template, program = _known(task)
        if parent is None:
            tried = {idea.data.get("move") for idea in board.tried if idea.parent is None}
            every = [_first_idea(one) for one in _starts(template, program, task) if _permits(task, one)]
            new = [one for one in every if one.data["move"] not in tried]
            tuned = [one for one in new if str(one.data["move"]).endswith(TUNED)]
            return (tuned or new or every)[:count]
        recipe = _recipe(parent.data, template)
        if recipe is None:
            return []
        here = {idea.data["move"] for idea in board.tried if idea.parent == parent.variant and "move" in idea.data}
        proposals = catalog.proposals(
            template, program, recipe, task.device, here, board.tried, _sol_share(task, parent), seed
        )
        drafts: list[IdeaDraft] = []
        for name, made in proposals:
            if len(drafts) == count:
                break
            if not all(_permits(task, one) for one in made):
                continue
            data: dict[str, Any] = {"move": name}
            if parent.verdict.speedup is not None:
                data["parent_speedup"] = parent.verdict.speedup
            drafts.append(IdeaDraft(made[0].category, _text(made), data))
        return drafts

    async def variants(
        self, task: Task, idea: IdeaDraft, parent: Kernel | None, board: Board, numbers: Sequence[int], seed: int
    ) -> AsyncIterator[VariantDraft]:
        task = _own(task)
        template, program = _known(task)
        starts = _starts(template, program, task)
        base = _base(template, program, task, idea, parent, starts)
        if base is None:
            return
        is_first = str(idea.data.get("move", "")).startswith(FIRST)
        before = base if is_first else _parent_recipe(template, parent, starts)
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
            source = with_header_constants(template.emit(program, recipe, task.problem), task.problem)
            if source not in sources:
                sources.add(source)
                found += 1
                note = "" if before is None else difference(before.choices, base.choices, recipe.choices)
                if before is not None and _undoes(before, base, recipe):  # The sampled settings undo the idea.
                    note += f", without {str(idea.data.get('move', '')).replace('_', ' ')}"
                yield _draft(template, source, recipe, note)

    async def fix(
        self, task: Task, idea: IdeaDraft, failed: Kernel, board: Board, turn: int, seed: int
    ) -> VariantDraft | None:
        """Rewrite a kernel that has wrong outputs to use more precise arithmetic. Returns None if the template does not
        offer more precise arithmetic.
        """
        task = _own(task)
        template, program = _known(task)
        recipe = _recipe(failed.data, template)
        safer = template.safer(program, recipe) if recipe is not None and failed.verdict.status == "wrong" else None
        if recipe is None or safer is None:
            return None
        note = difference(recipe.choices, recipe.choices, safer.choices)
        source = with_header_constants(template.emit(program, safer, task.problem), task.problem)
        return _draft(template, source, safer, note)

    async def close(self) -> None:
        """Do nothing, because the playbook has no resources to release."""


def _own(task: Task) -> Task:
    """Return the task with parameters renamed so that template variables do not shadow them."""
    return msgspec.structs.replace(task, problem=with_own_parameters(task.problem))


def _permits(task: Task, change: Start | Transformation) -> bool:
    """Return whether the judge accepts the rounding of ``change``."""
    return change.tolerance <= (0.0 if task.demands.exact else task.demands.tolerance)


def _starts(template: Template, program: Program, task: Task) -> list[Start]:
    """Return the template's first kernels.

    Most C++ templates start with plain loops, so the list puts the tuned version of these loops first. If the first of
    these kernels has opened knobs, it already has the fastest known structure, and the list does not contain tuned
    versions.
    """
    plain = template.starts(program, task.problem, task.device)
    if template.language != "cpp" or plain[0].recipe.opened:
        return plain
    found: list[Start] = []
    for start in plain:
        recipe, made = catalog.tuned(template, program, start.recipe, task.device, lambda one: _permits(task, one))
        known = any(recipe.choices == one.recipe.choices for one in (*found, *plain))
        if not known:
            changes = difference(start.recipe.choices, start.recipe.choices, recipe.choices)
            text = (
                "Begin with the most promising kernel, which already has every change with an expected gain of at "
                f"least 10%. Compared with plain loops: {changes}."
            )
            tolerance = max(start.tolerance, *(one.tolerance for one in made))
            found.append(Start(f"{start.name}{TUNED}", text, recipe, tolerance))
    return [*found, *plain]


def _first_idea(start: Start) -> IdeaDraft:
    return IdeaDraft("first", start.text, {"move": f"{FIRST}{start.name}"})


def _known(task: Task) -> tuple[Template, Program]:
    """Return the template and the program that fit the task. Raises ``Unsupported``."""
    reason = ""
    for pattern in PATTERNS:
        try:
            program = pattern.recognize(task.problem)
        except Unsupported as unsupported:
            reason = str(unsupported)
            continue
        if program is not None:
            template = next((one for one in pattern.templates if one.language == task.language), None)
            lack = f"the pattern {pattern.name} has no {LANGUAGE_NAMES[task.language]} template"
            refusal = lack if template is None else template.refusal(program)
            if template is not None and refusal is None:
                return template, program
            reason = str(refusal)  # Keep the last reason, because the last pattern, groups, tries all parts.
    raise Unsupported(reason or "no pattern matches the problem")


def _base(
    template: Template, program: Program, task: Task, idea: IdeaDraft, parent: Kernel | None, starts: list[Start]
) -> Recipe | None:
    """Return the recipe that ``idea`` requests, before any knobs are sampled; None if the idea's transformation does
    not apply.
    """
    name = str(idea.data.get("move", ""))
    if name.startswith(FIRST):
        return next((start.recipe for start in starts if f"{FIRST}{start.name}" == name), None)
    # A seeded idea without a parent applies to a tuned first kernel if possible, otherwise to another first kernel.
    tuned = [start for start in starts if start.name.endswith(TUNED)]
    ordered = [*tuned, *(start for start in reversed(starts) if start not in tuned)]
    recipes = [start.recipe for start in ordered] if parent is None else [_recipe(parent.data, template)]
    for recipe in recipes:
        found = catalog.find(template, program, recipe, name, task.device) if recipe is not None and name else None
        if found is not None:
            return found[0]
    return None


def _parent_recipe(template: Template, parent: Kernel | None, starts: list[Start]) -> Recipe | None:
    """Return the recipe that a variant's note compares the variant with."""
    return starts[-1].recipe if parent is None else _recipe(parent.data, template)


def _undoes(parent: Recipe, base: Recipe, recipe: Recipe) -> bool:
    """Return whether ``recipe`` has none of the transformation's changes. ``base``: ``parent`` with these changes."""
    changed = [knob for knob, value in base.choices.items() if parent.choices.get(knob) != value]
    return bool(changed) and all(recipe.choices.get(knob) == parent.choices.get(knob) for knob in changed)


def _recipe(data: dict[str, Any], template: Template) -> Recipe | None:
    """Return the recipe in a kernel's data; None if a person, another proposer or another template wrote the kernel."""
    try:
        recipe = msgspec.convert(data.get("recipe"), Recipe)
    except msgspec.ValidationError:
        return None
    return recipe if recipe.template == template.name else None


def _draft(template: Template, source: str, recipe: Recipe, note: str) -> VariantDraft:
    return VariantDraft(source, template.language, note, {"recipe": msgspec.json.decode(msgspec.json.encode(recipe))})


def _text(made: list[Transformation]) -> str:
    return " Also: ".join(one.text for one in made)


def _kernel_ms(kernel: Kernel) -> float | None:
    timing = kernel.verdict.kernel if kernel.verdict.correct else None
    return None if timing is None else timing.median_ms


def _sol_share(task: Task, parent: Kernel) -> float | None:
    if parent.verdict.sol_share is not None:
        return parent.verdict.sol_share
    if task.sol_ms is None or parent.verdict.kernel is None or not parent.verdict.kernel.median_ms:
        return None
    return task.sol_ms / parent.verdict.kernel.median_ms
