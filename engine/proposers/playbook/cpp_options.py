"""The choices that the C++ templates leave open, read from a recipe."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from engine.proposers.playbook.template import Choices


class RowOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """A row kernel. ``lanes`` 1 is scalar code with the C library's functions.

    ``order``: ``passes`` runs each pass over all rows before the next, ``rows`` finishes a row while it is in the
    cache. ``fused`` merges two dependent reductions block by block. ``reuse``: where a costly value of the last pass
    waits for the output: not at all, in the output row, or in a buffer. ``parallel``: threads share rows, or the
    ``parts`` of each row. ``block``: columns per block. ``chunk``: rows per piece of work, 0: the schedule's own.
    ``prefetch``: elements ahead, 0: none. ``stores``: through the caches or past them.
    """

    lanes: int = 1
    order: Literal["passes", "rows"] = "rows"
    fused: bool = False
    reuse: Literal["recompute", "output", "buffer"] = "recompute"
    parallel: Literal["none", "rows", "columns"] = "none"
    parts: int = 2
    schedule: Literal["static", "dynamic", "guided"] = "static"
    chunk: int = 0
    accumulators: int = 1
    block: int = 4096
    unroll: int = 1
    math: Literal["libm", "polynomial"] = "libm"
    exp_degree: int = 6
    divide: Literal["divide", "reciprocal"] = "divide"
    stores: Literal["cached", "stream"] = "cached"
    prefetch: int = 0
    backward: bool = False


class PointwiseOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """A pointwise kernel; see :class:`RowOptions`. ``block``: elements per piece of work when threads share them."""

    lanes: int = 1
    parallel: bool = False
    schedule: Literal["static", "dynamic", "guided"] = "static"
    block: int = 16384
    unroll: int = 1
    math: Literal["libm", "polynomial"] = "libm"
    exp_degree: int = 6
    divide: Literal["divide", "reciprocal"] = "divide"
    stores: Literal["cached", "stream"] = "cached"
    prefetch: int = 0


def row_options(choices: Choices) -> RowOptions:
    """Raises ``msgspec.ValidationError`` for an unknown choice."""
    return msgspec.convert(choices, RowOptions)


def pointwise_options(choices: Choices) -> PointwiseOptions:
    """Raises ``msgspec.ValidationError`` for an unknown choice."""
    return msgspec.convert(choices, PointwiseOptions)


def choices_of(options: RowOptions | PointwiseOptions) -> Choices:
    """All choices, by name."""
    choices: Choices = msgspec.to_builtins(options)
    return choices
