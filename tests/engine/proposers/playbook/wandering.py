"""Draw recipes within reach of a search, for tests of everything that the playbook can write."""

from __future__ import annotations

import random

from engine.devices.fact import DeviceFact
from engine.problem.spec import Language, ProblemSpec
from engine.proposers.playbook.base import Program, Recipe, Template, Unsupported
from engine.proposers.playbook.patterns import PATTERNS
from engine.proposers.playbook.transformations.catalog import apply

CPU = DeviceFact(id="cpu", kind="cpu", name="cpu", arch="native", memory_bytes=1 << 33, cores=2)


WGMMA = "wgmma"
WGMMA_ROWS = "wgmma_rows"
"""The names of first kernels with wgmma."""


def known(spec: ProblemSpec, language: Language = "cpp") -> tuple[Template, Program]:
    """Return the first pattern that recognizes the problem, as its template and program."""
    for pattern in PATTERNS:
        try:
            program = pattern.recognize(spec)
        except Unsupported:
            continue
        if program is not None:
            return next(one for one in pattern.templates if one.language == language), program
    raise AssertionError("no pattern")


def wander(
    template: Template, program: Program, spec: ProblemSpec, seed: int, device: DeviceFact = CPU, steps: int = 8
) -> Recipe:
    """Apply random transformations to a first kernel, and then random settings of their knobs.

    First kernels with wgmma are left out, because the emulator has no tensor maps and no asynchronous products.
    """
    rng = random.Random(seed)
    starts = [start for start in template.starts(program, spec, device) if start.name not in (WGMMA, WGMMA_ROWS)]
    recipe = rng.choice(starts).recipe
    for _ in range(rng.randrange(steps)):
        transformations = template.transformations(program, recipe, device)
        if transformations:
            recipe = apply(recipe, rng.choice(transformations))
    knobs = template.knobs(program, recipe, device)
    return recipe.with_({knob: rng.choice(values) for knob, values in knobs.items() if knob in recipe.opened})


def ladder(template: Template, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Recipe]:
    """Start from the last start and add one transformation at a time, each with every value of its knobs."""
    recipe = template.starts(program, spec, device)[-1].recipe
    found, made = [recipe], set()
    while transformation := next(
        (one for one in template.transformations(program, recipe, device) if one.name not in made), None
    ):
        made.add(transformation.name)
        recipe = apply(recipe, transformation)
        found.append(recipe)
        knobs = template.knobs(program, recipe, device)
        found += [
            recipe.with_({knob: value})
            for knob in transformation.opens
            if transformation.name != "tune"
            for value in knobs.get(knob, ())
        ]
    return found
