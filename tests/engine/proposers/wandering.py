"""Recipes that a search could reach: for tests over whatever the playbook may write."""

from __future__ import annotations

import random

from engine.events import DeviceFact
from engine.problem.spec import Form, ProblemSpec
from engine.proposers.playbook.families import FAMILIES
from engine.proposers.playbook.ir import Program
from engine.proposers.playbook.moves import apply
from engine.proposers.playbook.template import Recipe, Template

CPU = DeviceFact(id="cpu", kind="cpu", name="cpu", arch="native", memory_bytes=1 << 33, cores=2)


def known(spec: ProblemSpec, language: Form = "cpp") -> tuple[Template, Program]:
    """The first family that recognises the problem: its template and the program."""
    for family in FAMILIES:
        program = family.recognise(spec)
        if program is not None:
            return next(one for one in family.templates if one.language == language), program
    raise AssertionError("no family")


def wander(
    template: Template, program: Program, spec: ProblemSpec, seed: int, device: DeviceFact = CPU, steps: int = 8
) -> Recipe:
    """Some moves from a first kernel, then some settings of the knobs that they opened."""
    rng = random.Random(seed)
    recipe = rng.choice(template.first(program, spec, device)).recipe
    for _ in range(rng.randrange(steps)):
        moves = template.moves(program, recipe, device)
        if moves:
            recipe = apply(recipe, rng.choice(moves))
    knobs = template.knobs(program, recipe, device)
    return recipe.with_({knob: rng.choice(values) for knob, values in knobs.items() if knob in recipe.opened})


def ladder(template: Template, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Recipe]:
    """The last first kernel, then one more move at a time, each with every value of the knobs that it opens once."""
    recipe = template.first(program, spec, device)[-1].recipe
    found, made = [recipe], set()
    while move := next((one for one in template.moves(program, recipe, device) if one.name not in made), None):
        made.add(move.name)
        recipe = apply(recipe, move)
        found.append(recipe)
        knobs = template.knobs(program, recipe, device)
        found += [
            recipe.with_({knob: value}) for knob in move.opens if move.name != "tune" for value in knobs.get(knob, ())
        ]
    return found
