"""Choices that the C++ templates share, and the conversion of these choices to and from a recipe."""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from engine.proposers.playbook.base import Choices

Arithmetic = Literal["libm", "polynomial"]
"""How a kernel computes elementary functions: with the C library, or with polynomials on whole vectors."""


class ElementwiseOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """How a kernel computes and stores elements.

    Attributes:
        lanes: Floats in a vector; 1 means scalar code with the C library's functions.
        unroll: Vectors per iteration of the loop that stores results.
        exp_degree: Degree of the exponential's polynomial.
        stores: Whether stores go through the caches or bypass the caches.
        prefetch: Prefetch distance, in elements; 0 means no prefetch.
    """

    lanes: int = 1
    schedule: Literal["static", "dynamic", "guided"] = "static"
    unroll: int = 1
    math: Arithmetic = "libm"
    exp_degree: int = 6
    divide: Literal["divide", "reciprocal"] = "divide"
    stores: Literal["cached", "stream"] = "cached"
    prefetch: int = 0


Options = TypeVar("Options", bound=Struct)


def options_of(kind: type[Options], choices: Choices) -> Options:
    """Convert a recipe's ``choices`` to options. Raises ``msgspec.ValidationError`` for an unknown choice."""
    return msgspec.convert(choices, kind)


def choices_of(options: Struct) -> Choices:
    """Convert options to a recipe's choices."""
    choices: Choices = msgspec.to_builtins(options)
    return choices
