"""Which settings of its opened knobs a recipe is tried with. Pure and deterministic for a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from msgspec import Struct

from engine.proposers.playbook.template import Choice, Choices, Recipe

_COMBINATIONS = 64
"""Random combinations that are drawn before a recipe counts as explored."""


class Measured(Struct, frozen=True):
    """A recipe that was tried; ``ms`` is its time, None where it was not correct."""

    recipe: Recipe
    ms: float | None


def candidates(
    base: Recipe, knobs: dict[str, tuple[Choice, ...]], measured: Sequence[Measured], seed: int
) -> Iterator[Recipe]:
    """Settings of ``base``'s opened knobs, the most promising first, none that was measured before, none twice.

    First the best known setting of the same structure, then ``base`` as the move left it, then neighbours of the
    centre one knob at a time (nearest first, knobs opened last first), then random combinations.
    """
    opened = [knob for knob in base.opened if knob in knobs]
    centre = _centre(base, opened, measured)
    seen = {_key(one.recipe.choices) for one in measured if one.recipe.template == base.template}
    explored = (*_neighbours(centre, opened, knobs, seed), *_random(centre, opened, knobs, seed))
    for choices in (centre, base.choices, *explored):
        if _key(choices) not in seen:
            seen.add(_key(choices))
            yield Recipe(base.template, choices, base.opened)


def _key(choices: Choices) -> tuple[tuple[str, Choice], ...]:
    return tuple(sorted(choices.items()))


def _centre(base: Recipe, opened: list[str], measured: Sequence[Measured]) -> Choices:
    """The choices of the fastest measured recipe that differs from ``base`` in opened knobs only, or ``base``'s."""
    fixed = {knob: value for knob, value in base.choices.items() if knob not in opened}
    best: tuple[float, Choices] | None = None
    for one in measured:
        if one.ms is None or one.recipe.template != base.template:
            continue
        same = all(one.recipe.choices.get(knob) == value for knob, value in fixed.items())
        if same and (best is None or one.ms < best[0]):
            best = (one.ms, one.recipe.choices)
    return base.choices if best is None else best[1]


def _neighbours(centre: Choices, opened: list[str], knobs: dict[str, tuple[Choice, ...]], seed: int) -> list[Choices]:
    """One knob changed at a time, by one step before by two."""
    rng = random.Random(f"neighbours {seed} {_key(centre)}")
    ranked: list[tuple[int, int, float, Choices]] = []
    for age, knob in enumerate(reversed(opened)):
        values = knobs[knob]
        here = values.index(centre[knob]) if centre[knob] in values else 0
        for place, value in enumerate(values):
            if value != centre[knob]:
                ranked.append((abs(place - here), age, rng.random(), {**centre, knob: value}))
    return [choices for *_, choices in sorted(ranked, key=lambda one: one[:3])]


def _random(centre: Choices, opened: list[str], knobs: dict[str, tuple[Choice, ...]], seed: int) -> Iterator[Choices]:
    if len(opened) < 2:
        return
    rng = random.Random(f"combinations {seed} {_key(centre)}")
    for _ in range(_COMBINATIONS):
        yield {**centre, **{knob: rng.choice(knobs[knob]) for knob in opened}}
