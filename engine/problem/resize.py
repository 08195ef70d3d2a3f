"""A problem at other sizes: those that a person names, or a smaller, a larger and an odd one that are derived.

Other sizes are another file to inspect, with another header: a kernel is built anew for them. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from engine.problem.catalog import inspect_sources
from engine.problem.sizes import SizeError, larger, odd, scalable, sizes_of, smaller, with_sizes, written
from engine.problem.source import ProblemFailure
from engine.problem.spec import ProblemSpec


class Resized(Struct, frozen=True):
    """A problem at other sizes. ``label``: what is meant by them ("smaller"), "" where a person named them."""

    label: str
    sizes: dict[str, int]
    problem: ProblemSpec


class NoOtherSizes(Exception):
    """No other sizes can be derived; one sentence why."""


_KINDS: dict[str, Callable[[int, int], int]] = {"smaller": smaller, "odd": odd, "larger": larger}


async def resize(problem: ProblemSpec, wanted: Sequence[Mapping[str, int]]) -> list[Resized]:
    """The problem at each of ``wanted``. Raises ``SizeError`` with the reason for the first that cannot be."""
    answers = await _inspect(problem, [with_sizes(problem.source, sizes) for sizes in wanted])
    made = []
    for sizes, answer in zip(wanted, answers, strict=True):
        if isinstance(answer, ProblemFailure):
            raise SizeError(f"the problem cannot have these sizes: {answer}")
        made.append(_named(problem, "", sizes, answer))
    return made


async def other_sizes(problem: ProblemSpec) -> list[Resized]:
    """A smaller, an odd and a larger problem, as far as the model can have them, in that order.

    All sizes are scaled together. Where the model cannot have that (a width that must be a multiple of a number of
    heads), one is scaled that it can have by itself. Raises ``NoOtherSizes``.
    """
    try:
        known = scalable(sizes_of(problem.source))
    except SyntaxError as error:
        raise NoOtherSizes(f"its file cannot be read: {error}") from None
    if not known:
        raise NoOtherSizes("its file names no sizes: no whole number at module level, in get_inputs or get_init_inputs")
    together = {
        label: {name: make(value, len(known)) for name, value in known.items()} for label, make in _KINDS.items()
    }
    made = await _fitting(problem, list(together.items()))
    if missing := [label for label in _KINDS if label not in made]:
        alone = [(label, {name: _KINDS[label](value, 1)}) for label in missing for name, value in known.items()]
        made |= await _fitting(problem, alone)
    if not made:
        raise NoOtherSizes(f"the model cannot have others than {written(known)}")
    return [made[label] for label in _KINDS if label in made]


async def _fitting(problem: ProblemSpec, wanted: Sequence[tuple[str, dict[str, int]]]) -> dict[str, Resized]:
    """Of ``wanted`` (label, sizes), by label the first that the model can have and that an input shows."""
    answers = await _inspect(problem, [with_sizes(problem.source, sizes) for _, sizes in wanted])
    made: dict[str, Resized] = {}
    for (label, sizes), answer in zip(wanted, answers, strict=True):
        if label not in made and isinstance(answer, ProblemSpec) and _is_other(problem, answer):
            made[label] = _named(problem, label, sizes, answer)
    return made


def shape_words(problem: ProblemSpec) -> str:
    """``x (1000, 512)``: the inputs, those of a model with many cut short."""
    words = [f"{one.name} {one.shape}" for one in problem.inputs]
    return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


async def _inspect(problem: ProblemSpec, sources: Sequence[str]) -> list[ProblemSpec | ProblemFailure]:
    return await inspect_sources(problem.id, problem.path, sources) if sources else []


def _is_other(problem: ProblemSpec, answer: ProblemSpec) -> bool:
    """Whether an input has another shape, and the problem the form that it has at its own sizes."""
    if (answer.c_refusal is None) != (problem.c_refusal is None):
        return False
    return [one.shape for one in answer.inputs] != [one.shape for one in problem.inputs]


def _named(problem: ProblemSpec, label: str, sizes: Mapping[str, int], answer: ProblemSpec) -> Resized:
    # A judge tells problems apart by their id.
    suffix = label or "_".join(f"{name}_{value}" for name, value in sizes.items())
    return Resized(label, dict(sizes), replace(answer, id=f"{problem.id}@{suffix}"))
