"""Which moves are worth trying next on a kernel: applied, combined and ordered by expected profit."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from engine.events import DeviceFact
from engine.proposers.playbook.ir import Program
from engine.proposers.playbook.template import Move, Recipe, Template
from engine.proposers.protocol import TriedIdea

COMBINED = "+"
"""Between the names of moves made together."""
_MEMORY_BOUND = 0.5
"""Share of the floor from which memory is taken for the limit."""
_COMPUTE_BOUND = 0.2
_TRUST = 2.0
"""What a measurement elsewhere weighs against the catalogue's guess."""
_JITTER = 0.02
"""Seeds differ in the order of moves that are about equally good."""


def apply(recipe: Recipe, move: Move) -> Recipe:
    return recipe.with_(move.changes, move.opens)


def find(
    template: Template, program: Program, recipe: Recipe, name: str, device: DeviceFact
) -> tuple[Recipe, list[Move]] | None:
    """``recipe`` after the moves in ``name`` (joined by ``COMBINED``), and those; None where one does not apply."""
    made = []
    for part in name.split(COMBINED):
        move = next((one for one in template.moves(program, recipe, device) if one.name == part), None)
        if move is None:
            return None
        recipe = apply(recipe, move)
        made.append(move)
    return recipe, made


def all_moves(template: Template, program: Program, starts: Iterable[Recipe], device: DeviceFact) -> list[Move]:
    """Every move that some kernel of the template can be given, by first appearance."""
    found: dict[str, Move] = {}
    waiting = list(starts)
    while waiting:
        recipe = waiting.pop(0)
        for move in template.moves(program, recipe, device):
            if move.name not in found:
                found[move.name] = move
                waiting.append(apply(recipe, move))
    return list(found.values())


def proposals(
    template: Template,
    program: Program,
    recipe: Recipe,
    device: DeviceFact,
    tried_here: set[str],
    history: Sequence[TriedIdea],
    floor_share: float | None,
    seed: int,
) -> Iterator[tuple[str, list[Move]]]:
    """Names and moves for ``recipe``, most profitable first: single moves, and once those are used up, pairs.

    ``tried_here``: names of moves already tried on this kernel. ``history``: ideas tried on the problem;
    ``floor_share``: floor time / the kernel's time.
    """
    rng = random.Random(f"{seed} {sorted(recipe.choices.items())}")
    singles = template.moves(program, recipe, device)
    profit = {
        move.name: _profit(move, history, floor_share) * rng.uniform(1 - _JITTER, 1 + _JITTER) for move in singles
    }
    ordered = sorted(singles, key=lambda move: -profit[move.name])
    for move in ordered:
        if move.name not in tried_here:
            yield move.name, [move]
    tried_pairs = {frozenset(name.split(COMBINED)) for name in tried_here}
    pairs = []
    for first in ordered:
        for second in template.moves(program, apply(recipe, first), device):
            pair = frozenset((first.name, second.name))
            if len(pair) == 2 and pair not in tried_pairs:
                tried_pairs.add(pair)
                gain = profit[first.name] * profit.get(second.name, _profit(second, history, floor_share))
                pairs.append((gain, [first, second]))
    for _, made in sorted(pairs, key=lambda one: -one[0]):
        yield COMBINED.join(move.name for move in made), made


def _profit(move: Move, history: Sequence[TriedIdea], floor_share: float | None) -> float:
    """The expected time before / time after: the catalogue's guess, weighed with what the move did elsewhere."""
    seen: list[float] = [
        idea.speedup / float(idea.data["parent_speedup"])
        for idea in history
        if idea.data.get("move") == move.name and idea.speedup is not None and idea.data.get("parent_speedup")
    ]
    failed = len([idea for idea in history if idea.data.get("move") == move.name and idea.speedup is None])
    guess = 1.0 + (move.gain - 1.0) * _relevance(move, floor_share)
    return (guess + _TRUST * sum(seen)) / (1.0 + _TRUST * len(seen) + 0.5 * failed)


def _relevance(move: Move, floor_share: float | None) -> float:
    """How much of its gain a move can give on a kernel at this share of the floor (a roofline in one number)."""
    if floor_share is None or move.helps == "any":
        return 1.0
    if floor_share >= _MEMORY_BOUND:
        return {"memory": 1.5, "latency": 0.8, "compute": 0.4}[move.helps]
    if floor_share <= _COMPUTE_BOUND:
        return {"memory": 0.6, "latency": 1.0, "compute": 1.2}[move.helps]
    return 1.0
