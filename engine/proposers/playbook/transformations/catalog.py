"""Find, combine and rank a kernel's transformations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from engine.devices.fact import DeviceFact
from engine.proposers.playbook.base import Program, Recipe, Template, Transformation
from engine.proposers.protocol import TriedIdea

COMBINED = "+"
"""The separator between the names of transformations that one idea combines."""
_MEMORY_BOUND = 0.5
"""Minimum SOL share at which the ranking treats a kernel as memory-bound."""
_COMPUTE_BOUND = 0.2
"""Maximum SOL share at which the ranking treats a kernel as compute-bound."""
_TRUST = 2.0
"""The weight of each measured gain in the ranking. The expected gain has weight 1."""
_PROMISING = 1.1
"""The smallest expected gain of a transformation that a tuned first kernel includes."""
_JITTER = 0.02
"""The relative random spread in the ranking. With this spread, different seeds rank equally good transformations
differently.
"""


def apply(recipe: Recipe, transformation: Transformation) -> Recipe:
    return recipe.with_(transformation.changes, transformation.opens)


def find(
    template: Template, program: Program, recipe: Recipe, name: str, device: DeviceFact
) -> tuple[Recipe, list[Transformation]] | None:
    """Apply the transformations in ``name`` (joined by ``COMBINED``); return None if one does not apply."""
    made = []
    for part in name.split(COMBINED):
        known = {one.name: one for one in template.transformations(program, recipe, device)}
        if part not in known:
            return None
        recipe = apply(recipe, known[part])
        made.append(known[part])
    return recipe, made


def reachable(
    template: Template, program: Program, starts: Iterable[Recipe], device: DeviceFact
) -> list[Transformation]:
    """Return every transformation that applies to a kernel reachable from ``starts``, in order of first appearance."""
    found: dict[str, Transformation] = {}
    waiting = list(starts)
    while waiting:
        recipe = waiting.pop(0)
        for one in template.transformations(program, recipe, device):
            if one.name not in found:
                found[one.name] = one
                waiting.append(apply(recipe, one))
    return list(found.values())


def tuned(
    template: Template, program: Program, recipe: Recipe, device: DeviceFact, permits: Callable[[Transformation], bool]
) -> tuple[Recipe, list[Transformation]]:
    """Apply each permitted transformation with a large expected gain once, in order of decreasing gain.

    Returns the new recipe and the applied transformations.
    """
    made: list[Transformation] = []
    while True:
        applied = {one.name for one in made}
        promising = [
            one
            for one in template.transformations(program, recipe, device)
            if one.gain >= _PROMISING and one.name not in applied and permits(one)
        ]
        if not promising:
            return recipe, made
        made.append(max(promising, key=lambda one: one.gain))
        recipe = apply(recipe, made[-1])


def proposals(
    template: Template,
    program: Program,
    recipe: Recipe,
    device: DeviceFact,
    tried_here: set[str],
    history: Sequence[TriedIdea],
    sol_share: float | None,
    seed: int,
) -> Iterator[tuple[str, list[Transformation]]]:
    """Yield transformations of ``recipe`` with their names. Single transformations precede pairs, and larger
    expected gains come first in each group.

    Args:
        tried_here: Names of the transformations already tried on this kernel.
        history: Ideas tried on the problem so far.
        sol_share: The kernel's SOL share (SOL time / kernel time), if known.
    """
    rng = random.Random(f"{seed} {sorted(recipe.choices.items())}")
    singles = template.transformations(program, recipe, device)
    profit = {one.name: _profit(one, history, sol_share) * rng.uniform(1 - _JITTER, 1 + _JITTER) for one in singles}
    ordered = sorted(singles, key=lambda one: -profit[one.name])
    for one in ordered:
        if one.name not in tried_here:
            yield one.name, [one]
    tried_pairs = {frozenset(name.split(COMBINED)) for name in tried_here}
    pairs = []
    for first in ordered:
        for second in template.transformations(program, apply(recipe, first), device):
            pair = frozenset((first.name, second.name))
            if len(pair) == 2 and pair not in tried_pairs:
                tried_pairs.add(pair)
                gain = profit[first.name] * profit.get(second.name, _profit(second, history, sol_share))
                pairs.append((gain, [first, second]))
    for _, made in sorted(pairs, key=lambda one: -one[0]):
        yield COMBINED.join(one.name for one in made), made


def _profit(transformation: Transformation, history: Sequence[TriedIdea], sol_share: float | None) -> float:
    """Return a transformation's expected speedup: the built-in estimate, averaged with gains measured on other
    kernels.
    """
    tried = [idea for idea in history if idea.data.get("move") == transformation.name]
    seen: list[float] = [
        idea.speedup / float(idea.data["parent_speedup"])
        for idea in tried
        if idea.speedup is not None and idea.data.get("parent_speedup")
    ]
    failed = sum(idea.speedup is None for idea in tried)
    guess = 1.0 + (transformation.gain - 1.0) * _relevance(transformation, sol_share)
    return (guess + _TRUST * sum(seen)) / (1.0 + _TRUST * len(seen) + 0.5 * failed)


def _relevance(transformation: Transformation, sol_share: float | None) -> float:
    """Return the factor that scales an expected gain by the kernel's SOL share, as in a roofline model."""
    if sol_share is None or transformation.helps == "any":
        return 1.0
    if sol_share >= _MEMORY_BOUND:
        return {"memory": 1.5, "latency": 0.8, "compute": 0.4}[transformation.helps]
    if sol_share <= _COMPUTE_BOUND:
        return {"memory": 0.6, "latency": 1.0, "compute": 1.2}[transformation.helps]
    return 1.0
