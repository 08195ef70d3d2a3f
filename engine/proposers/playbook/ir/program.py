"""Programs: the intermediate representation between a traced reference and the templates for all languages.

A program computes on a **domain** of ``numel`` elements in row-major order. The kernel computes one element per
iteration. A program's sizes (``numel``, ``rows``, ``cols``, and the sizes in each ``Access``) carry their names in the
header (``sizes.Size``). A program's ``values`` are in static single assignment form: value number ``k`` depends only on
earlier values. A program contains each common subexpression once. Tensors are fp32 and contiguous.

:class:`PointwiseProgram`
    Every output element depends only on the input elements at the same (broadcast) position.
:class:`RowProgram`
    The domain is ``rows`` x ``cols``. ``reductions`` fold values over the ``cols`` elements of a row. Later values may
    use a reduction's result (``reduced``). Examples are softmax, layernorm and rmsnorm.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal, Protocol

from msgspec import Struct

from engine.proposers.playbook.base import Program

UNARY_OPS = frozenset(
    {
        "neg", "abs", "sign", "floor", "ceil", "round", "trunc", "not",
        "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal",
        "tanh", "sigmoid", "erf", "sin", "cos", "tan", "atan", "sinh", "cosh",
    }
)  # fmt: skip
"""Operations on one number: ``round`` rounds to nearest even, and ``sigmoid`` is 1 / (1 + exp(-x)). ``not`` takes a
Boolean."""
BINARY_OPS = frozenset({"add", "sub", "mul", "div", "pow", "max", "min", "atan2", "fmod"})
"""Operations on two numbers. ``max`` and ``min`` propagate NaN, like PyTorch."""
COMPARE_OPS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
"""Comparisons of two numbers. The result is a Boolean."""
LOGIC_OPS = frozenset({"and", "or"})
"""Logical operations on two Booleans."""

ReduceOp = Literal["sum", "max", "min", "prod", "argmax", "argmin"]
"""Operations that reduce many numbers to one. A mean is a ``sum`` and a multiplication. ``max`` and ``min`` propagate
NaN. ``argmax`` and ``argmin`` give the position of the first extremum, or of the first NaN.
"""
ROW_OPS = frozenset({"sum", "max", "min"})
"""The reductions that a row program may contain."""


class Access(Struct, frozen=True):
    """The element of a smaller tensor that a domain element reads: flat index ``(i // inner) % count``.

    The pair ``(inner, count)`` is ``(1, numel)`` for the whole domain, and ``(1, cols)`` for a vector over the last
    dimension. The pair is ``(cols, rows)`` for one value per row, ``(height * width, channels)`` for a bias per
    channel, and ``(1, 1)`` for a single number. If ``count`` is 1, ``inner`` is also 1.
    """

    inner: int
    count: int

    def then(self, next_: Access) -> Access:
        """Compose two accesses. ``next_`` maps each element that ``self`` reads to an element in another tensor."""
        return Access(1, 1) if next_.count == 1 else Access(self.inner * next_.inner, next_.count)


class Value(Struct, frozen=True):
    """One value of a program.

    Attributes:
        op: An operation of ``UNARY_OPS``, ``BINARY_OPS``, ``COMPARE_OPS`` or ``LOGIC_OPS``, or one of the following.
            ``const`` is ``number``. ``load`` is the element of ``tensor`` at ``access``. ``position`` is the flat index
            that ``access`` yields, in the epilogue of a product. ``reduced`` is the result of ``reduction`` for this
            element's row. ``select`` chooses between two values: its ``args`` are the condition, the value if true, and
            the value if false. Products and roots replace ``pow`` for suitable exponents.
        args: Positions of the operands among the program's values.
        text: The C expression of a ``number`` that derives from the header's sizes; "" for any other number.
    """

    op: str
    args: tuple[int, ...] = ()
    number: float = 0.0
    text: str = ""
    tensor: str = ""
    access: Access = Access(1, 1)
    reduction: int = -1


class Store(Struct, frozen=True):
    """A store of ``value`` to output ``tensor``: one per row if ``per_row``, otherwise one per domain element."""

    tensor: str
    value: int
    per_row: bool = False


class Reduction(Struct, frozen=True):
    """A reduction with ``op`` over a row of the value ``source``."""

    op: ReduceOp
    source: int


class FusedPair(Struct, frozen=True):
    """Two dependent reductions that one pass over the row can compute together.

    Attributes:
        kind: ``online_softmax``: ``first`` is max(x) and ``second`` is sum(exp(x - max)); the kernel rescales the sum
            when the running maximum rises. ``moments``: ``first`` is sum(x) and ``second`` is sum((x - sum / cols)^2);
            Chan's formula merges partial sums.
        source: The value x in both reductions.
        mean: The value sum / cols, for moments.
        correction: The reduction sum(x - mean), if any. In exact arithmetic, this sum is 0. In fp32, it is cols times
            the rounding error of the mean. The second pass also computes this sum.
    """

    kind: Literal["online_softmax", "moments"]
    first: int
    second: int
    source: int
    mean: int = -1
    correction: int = -1


class PointwiseProgram(Program, frozen=True, dict=True):
    """An elementwise program over ``numel`` elements."""

    numel: int
    values: tuple[Value, ...]
    stores: tuple[Store, ...]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return the values that the program's stores need, in execution order."""
        return needed(self.values, (store.value for store in self.stores))


class RowProgram(Program, frozen=True, dict=True):
    """A program over ``rows`` x ``cols`` that reduces each row. ``stores`` come after the reductions."""

    rows: int
    cols: int
    values: tuple[Value, ...]
    reductions: tuple[Reduction, ...]
    stores: tuple[Store, ...]

    @property
    def numel(self) -> int:
        return self.rows * self.cols

    @cached_property
    def per_row(self) -> tuple[bool, ...]:
        """For each value, whether the value is the same for all elements in a row."""
        found: list[bool] = []
        for value in self.values:
            if value.op == "load":
                found.append(value.access.count == 1 or value.access.inner % self.cols == 0)
            else:
                found.append(all(found[arg] for arg in value.args))
        return tuple(found)

    @cached_property
    def passes(self) -> tuple[tuple[int, ...], ...]:
        """Return the program's reductions by pass; see :func:`passes_of`."""
        return passes_of(self.values, self.reductions)

    @cached_property
    def element_stores(self) -> tuple[Store, ...]:
        return tuple(store for store in self.stores if not store.per_row)

    @cached_property
    def row_stores(self) -> tuple[Store, ...]:
        return tuple(store for store in self.stores if store.per_row)

    def reductions_of(self, value: int) -> frozenset[int]:
        """Return the reductions whose results ``value`` uses directly."""
        return reductions_of(self.values, value)

    def element_order(self, values: Iterable[int]) -> tuple[int, ...]:
        """Return the per-element values that ``values`` need, in execution order. These values form the body of a loop
        over the row.
        """
        return tuple(k for k in needed(self.values, values) if not self.per_row[k])

    def row_order(self, values: Iterable[int]) -> tuple[int, ...]:
        """Return the per-row values that ``values`` need, in execution order. A kernel computes these values once,
        before the loop.
        """
        return tuple(k for k in needed(self.values, values) if self.per_row[k])

    @cached_property
    def fused_pairs(self) -> tuple[FusedPair, ...]:
        """Return the pairs of dependent reductions that one pass can compute."""
        return fused_pairs(self)

    @property
    def fusable_pair(self) -> FusedPair | None:
        """Return the first fusable pair whose two passes compute nothing else. Fusing this pair saves a whole pass."""
        return next((pair for pair in self.fused_pairs if is_alone(self, pair)), None)


class Reducing(Protocol):
    """The interface of programs with reductions over rows of ``cols`` elements."""

    @property
    def cols(self) -> int: ...
    @property
    def values(self) -> tuple[Value, ...]: ...
    @property
    def per_row(self) -> tuple[bool, ...]: ...
    @property
    def reductions(self) -> tuple[Reduction, ...]: ...
    @property
    def passes(self) -> tuple[tuple[int, ...], ...]: ...


def fused_pairs(program: Reducing) -> tuple[FusedPair, ...]:
    """Return the pairs of dependent reductions that one pass can compute."""
    found = []
    for second, reduction in enumerate(program.reductions):
        for first in reductions_of(program.values, reduction.source):
            if (pair := _fuse(program, first, second)) is not None:
                found.append(pair)
    return tuple(found)


def is_alone(program: Reducing, pair: FusedPair) -> bool:
    """Return whether the two passes of ``pair`` compute only this pair."""
    at = next(n for n, group in enumerate(program.passes) if pair.first in group)
    if program.passes[at] != (pair.first,) or at + 1 == len(program.passes):
        return False
    return set(program.passes[at + 1]) <= {pair.second, pair.correction}


def needed(values: tuple[Value, ...], roots: Iterable[int]) -> tuple[int, ...]:
    """Return the positions of ``roots`` and of the values on which they depend, ascending. Stop at
    ``reduced`` values.
    """
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        position = waiting.pop()
        if position not in seen:
            seen.add(position)
            waiting.extend(values[position].args)
    return tuple(sorted(seen))


def reductions_of(values: tuple[Value, ...], value: int) -> frozenset[int]:
    """Return the reductions whose results ``value`` uses directly."""
    return frozenset(values[k].reduction for k in needed(values, (value,)) if values[k].op == "reduced")


def passes_of(values: tuple[Value, ...], reductions: tuple[Reduction, ...]) -> tuple[tuple[int, ...], ...]:
    """Return a program's reductions by pass. Each reduction depends only on reductions in earlier passes."""
    depth: list[int] = []
    for reduction in reductions:
        used = reductions_of(values, reduction.source)
        depth.append(1 + max((depth[k] for k in used), default=-1))
    return tuple(
        tuple(k for k, level in enumerate(depth) if level == wanted) for wanted in range(max(depth, default=-1) + 1)
    )


def _fuse(program: Reducing, first: int, second: int) -> FusedPair | None:
    a, b = program.reductions[first], program.reductions[second]
    values, x = program.values, program.reductions[first].source
    if b.op != "sum" or program.per_row[x] or reductions_of(values, b.source) != {first}:
        return None
    outer = values[b.source]
    if a.op == "max" and outer.op == "exp":
        inner = values[outer.args[0]]
        if inner.op == "sub" and inner.args[0] == x and _is_reduced(values[inner.args[1]], first):
            return FusedPair("online_softmax", first, second, x)
    if a.op == "sum" and outer.op == "mul" and outer.args[0] == outer.args[1]:
        inner = values[outer.args[0]]
        if inner.op == "sub" and inner.args[0] == x and _is_mean(program, inner.args[1], first):
            ride = (k for k, other in enumerate(program.reductions) if other == Reduction("sum", outer.args[0]))
            return FusedPair("moments", first, second, x, inner.args[1], next(ride, -1))
    return None


def _is_reduced(value: Value, reduction: int) -> bool:
    return value.op == "reduced" and value.reduction == reduction


def _is_mean(program: Reducing, position: int, reduction: int) -> bool:
    """Return whether a value is sum / cols, as a division or as a multiplication by 1 / cols."""
    value = program.values[position]
    if len(value.args) != 2 or not _is_reduced(program.values[value.args[0]], reduction):
        return False
    factor = program.values[value.args[1]]
    if factor.op != "const":
        return False
    return (value.op == "div" and factor.number == program.cols) or (
        value.op == "mul" and factor.number == 1.0 / program.cols
    )


def as_pointwise(program: Program) -> PointwiseProgram:
    """Return ``program``, whose type must be :class:`PointwiseProgram`."""
    assert isinstance(program, PointwiseProgram), "the analysis chose the wrong pattern"
    return program


def as_rows(program: Program) -> RowProgram:
    """Return ``program``, whose type must be :class:`RowProgram`."""
    assert isinstance(program, RowProgram), "the analysis chose the wrong pattern"
    return program
