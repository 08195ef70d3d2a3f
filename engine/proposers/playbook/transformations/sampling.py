"""Sample settings for a recipe's opened knobs. All functions are pure, and deterministic for a given seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from msgspec import Struct

from engine.proposers.playbook.base import Choice, Choices, Recipe

_COMBINATIONS = 64
"""The number of random combinations of settings to draw for a recipe."""


class Measured(Struct, frozen=True):
    """A recipe with a verdict. ``ms`` is the kernel's time, or None if the kernel was incorrect."""

    recipe: Recipe
    ms: float | None


def candidates(
    base: Recipe, knobs: dict[str, tuple[Choice, ...]], measured: Sequence[Measured], seed: int
) -> Iterator[Recipe]:
    """Yield each unmeasured setting of ``base``'s opened knobs once, the most promising first.

    The center is the fastest measured setting of the same structure, or ``base`` if there is none. ``base`` itself
    comes first. Settings that differ from the center in one knob follow, then random combinations. The nearest settings
    and the most recently opened knobs come first.
    """
    opened = [knob for knob in base.opened if knob in knobs]
    center = _center(base, opened, measured)
    seen = {_key(one.recipe.choices) for one in measured if one.recipe.template == base.template}
    explored = (*_neighbors(center, opened, knobs, seed), *_random(center, opened, knobs, seed))
    for choices in (center, base.choices, *explored):
        if _key(choices) not in seen:
            seen.add(_key(choices))
            yield Recipe(base.template, choices, base.opened)


def _key(choices: Choices) -> tuple[tuple[str, Choice], ...]:
    return tuple(sorted(choices.items()))


def _center(base: Recipe, opened: list[str], measured: Sequence[Measured]) -> Choices:
    """Return the choices of the fastest measured recipe that differs from ``base`` only in opened knobs. If no such
    recipe has a time, return the choices of ``base``.
    """
    fixed = {knob: value for knob, value in base.choices.items() if knob not in opened}
    best: tuple[float, Choices] | None = None
    for one in measured:
        if one.ms is None or one.recipe.template != base.template:
            continue
        same = all(one.recipe.choices.get(knob) == value for knob, value in fixed.items())
        if same and (best is None or one.ms < best[0]):
            best = (one.ms, one.recipe.choices)
    return base.choices if best is None else best[1]


def _neighbors(center: Choices, opened: list[str], knobs: dict[str, tuple[Choice, ...]], seed: int) -> list[Choices]:
    """Return the settings that change one knob, in order of increasing distance from the center."""
    # This text is part of the seed. Changing the text would change the answers in stored sessions.
    rng = random.Random(f"neighbours {seed} {_key(center)}")
    ranked: list[tuple[int, int, float, Choices]] = []
    for age, knob in enumerate(reversed(opened)):
        values = knobs[knob]
        here = values.index(center[knob]) if center[knob] in values else 0
        for place, value in enumerate(values):
            if value != center[knob]:
                ranked.append((abs(place - here), age, rng.random(), {**center, knob: value}))
    return [choices for *_, choices in sorted(ranked, key=lambda one: one[:3])]


def _random(center: Choices, opened: list[str], knobs: dict[str, tuple[Choice, ...]], seed: int) -> Iterator[Choices]:
    if len(opened) < 2:
        return
    rng = random.Random(f"combinations {seed} {_key(center)}")
    for _ in range(_COMBINATIONS):
        yield {**center, **{knob: rng.choice(knobs[knob]) for knob in opened}}
