"""Derive a problem with other sizes: sizes that the user sets, or smaller, larger and odd sizes.

Each resized problem has its own specification and header, so the builder compiles the kernel again. This module does
not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from engine.problem.catalog import inspect_sources
from engine.problem.failure import ProblemFailure
from engine.problem.sizes import SizeError, larger, odd, scalable, sizes_of, smaller, with_sizes, written
from engine.problem.spec import ProblemSpec


class Resized(Struct, frozen=True):
    """A problem with other sizes. ``label``: the kind of sizes ("smaller"), or "" for sizes that the user set."""

    label: str
    sizes: dict[str, int]
    problem: ProblemSpec


class NoOtherSizes(Exception):
    """The problem cannot have other sizes. The message gives the reason."""


_KINDS: dict[str, Callable[[int, int], int]] = {"smaller": smaller, "odd": odd, "larger": larger}


async def resize(problem: ProblemSpec, wanted: Sequence[Mapping[str, int]]) -> list[Resized]:
    """Return one resized problem for each element of ``wanted``.

    Raises ``SizeError`` for the first sizes that the model rejects.
    """
    answers = await _inspect(problem, [with_sizes(problem.source, sizes) for sizes in wanted])
    made = []
    for sizes, answer in zip(wanted, answers, strict=True):
        if isinstance(answer, ProblemFailure):
            raise SizeError(f"the model rejects these sizes: {answer}")
        made.append(_named(problem, "", sizes, answer))
    return made


async def other_sizes(problem: ProblemSpec) -> list[Resized]:
    """Return a smaller, an odd and a larger problem, in that order. The result omits sizes that the model rejects.

    First, all sizes scale together. The model may reject the result, for example because a width must be a multiple of
    the number of heads. In this case, only one size scales. Raises ``NoOtherSizes``.
    """
    try:
        known = scalable(sizes_of(problem.source))
    except SyntaxError as error:
        raise NoOtherSizes(f"the problem's file has a syntax error: {error}") from None
    if not known:
        raise NoOtherSizes(
            "the file contains no sizes: no integer above 1 at module level, in get_inputs or in get_init_inputs"
        )
    together = {
        label: {name: make(value, len(known)) for name, value in known.items()} for label, make in _KINDS.items()
    }
    made = await _fitting(problem, list(together.items()))
    if missing := [label for label in _KINDS if label not in made]:
        alone = [(label, {name: _KINDS[label](value, 1)}) for label in missing for name, value in known.items()]
        made |= await _fitting(problem, alone)
    if not made:
        raise NoOtherSizes(f"the model rejects the smaller, odd and larger sizes derived from {written(known)}")
    return [made[label] for label in _KINDS if label in made]


async def _fitting(problem: ProblemSpec, wanted: Sequence[tuple[str, dict[str, int]]]) -> dict[str, Resized]:
    """Map each label of ``wanted`` to the first sizes that the model accepts and that change an input's shape."""
    answers = await _inspect(problem, [with_sizes(problem.source, sizes) for _, sizes in wanted])
    made: dict[str, Resized] = {}
    for (label, sizes), answer in zip(wanted, answers, strict=True):
        if label not in made and isinstance(answer, ProblemSpec) and _is_other(problem, answer):
            made[label] = _named(problem, label, sizes, answer)
    return made


def shape_words(problem: ProblemSpec) -> str:
    """Format at most three input shapes, such as ``x (1000, 512)``."""
    words = [f"{one.name} {one.shape}" for one in problem.inputs]
    return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


async def _inspect(problem: ProblemSpec, sources: Sequence[str]) -> list[ProblemSpec | ProblemFailure]:
    return await inspect_sources(problem.id, problem.path, sources) if sources else []


def _is_other(problem: ProblemSpec, answer: ProblemSpec) -> bool:
    """Return whether an input's shape differs and the kernel languages stay the same."""
    if (answer.c_refusal is None) != (problem.c_refusal is None):
        return False
    return [one.shape for one in answer.inputs] != [one.shape for one in problem.inputs]


def _named(problem: ProblemSpec, label: str, sizes: Mapping[str, int], answer: ProblemSpec) -> Resized:
    # The judge identifies problems by id, so each resized problem needs its own id.
    suffix = label or "_".join(f"{name}_{value}" for name, value in sizes.items())
    return Resized(label, dict(sizes), replace(answer, id=f"{problem.id}@{suffix}"))
