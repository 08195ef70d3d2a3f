"""The intermediate representation between a traced reference and the emitters of all languages.

A program computes on a **domain** of ``numel`` elements in row-major order; element ``i`` is one iteration of
the kernel. Its sizes (``numel``, ``rows``, ``cols``, those of an ``Access``) know their names in the header
(``sizes.Size``). Its ``values`` are in static single assignment form: value ``k`` depends on earlier values only and
is named ``k`` by position, so that common subexpressions exist once. Tensors are fp32 and contiguous.

:class:`PointwiseProgram`
    every output element depends on the input elements of the same (broadcast) position.
:class:`RowProgram`
    the domain is ``rows`` x ``cols``; ``reductions`` fold values over the ``cols`` of a row, and later values
    may use a reduction's result (``reduced``). softmax, layernorm and rmsnorm are row programs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from msgspec import Struct

UNARY_OPS = frozenset(
    {
        "neg", "abs", "sign", "floor", "ceil", "round", "trunc", "not",
        "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal",
        "tanh", "sigmoid", "erf", "sin", "cos", "tan", "atan", "sinh", "cosh",
    }
)  # fmt: skip
"""``round`` is to nearest even. ``sigmoid`` is 1 / (1 + exp(-x)). ``not`` is of a truth value."""
BINARY_OPS = frozenset({"add", "sub", "mul", "div", "pow", "max", "min", "atan2", "fmod"})
"""``max`` and ``min`` propagate NaN as PyTorch does."""
COMPARE_OPS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
"""Two numbers to a truth value."""
LOGIC_OPS = frozenset({"and", "or"})
"""Two truth values to one."""

ReduceOp = Literal["sum", "max", "min"]
"""A mean is a ``sum`` and a multiplication; ``max`` and ``min`` propagate NaN."""


class Access(Struct, frozen=True):
    """Where a domain element finds its element of a smaller tensor: flat index ``(i // inner) % count``.

    The whole domain is (1, numel), a vector over the last dimension (1, cols), a value per row (cols, rows), a
    channel's bias (height * width, channels), a single number (1, 1). ``count`` 1 always has ``inner`` 1.
    """

    inner: int
    count: int

    def then(self, next_: Access) -> Access:
        """The access of ``next_``, an access of *this* tensor's own elements, from the domain of ``self``."""
        return Access(1, 1) if next_.count == 1 else Access(self.inner * next_.inner, next_.count)


class Value(Struct, frozen=True):
    """One value of a program.

    ``op`` is ``const`` (``number``), ``load`` (``tensor`` at ``access``), ``reduced`` (result of reduction
    ``reduction`` for this element's row), ``select`` (``args``: truth value, if true, if false), or one of
    ``UNARY_OPS``, ``BINARY_OPS``, ``COMPARE_OPS``, ``LOGIC_OPS``. ``args`` are positions of earlier values.
    ``pow`` with a constant exponent that a product or root expresses has been rewritten to it. ``text``: how a
    ``number`` follows from sizes of the problem, as a C expression of the header's constants; else "".
    """

    op: str
    args: tuple[int, ...] = ()
    number: float = 0.0
    text: str = ""
    tensor: str = ""
    access: Access = Access(1, 1)
    reduction: int = -1


class Store(Struct, frozen=True):
    """Output ``tensor`` receives value ``value``: one per domain element, or one per row where ``per_row``."""

    tensor: str
    value: int
    per_row: bool = False


class Reduction(Struct, frozen=True):
    """``op`` over the row of value ``source``."""

    op: ReduceOp
    source: int


class FusedPair(Struct, frozen=True):
    """Two dependent reductions that one pass over the row can compute together.

    ``online_softmax``: reduction ``first`` is max(x), ``second`` is sum(exp(x - max)): keep a running maximum
    and rescale the sum when it rises. ``moments``: ``first`` is sum(x), ``second`` is sum((x - sum / cols)^2):
    Welford's update, or sums of chunks merged by Chan's formula. ``source`` is the value x in both.
    ``mean`` is the value sum / cols of moments. ``correction`` is the reduction sum(x - mean), if there is one: in
    exact arithmetic 0, it holds what rounding the mean to fp32 lost (times cols), and rides in the second pass.
    """

    kind: Literal["online_softmax", "moments"]
    first: int
    second: int
    source: int
    mean: int = -1
    correction: int = -1


class Program(Struct, frozen=True):
    """What a family recognised: the class of programs that its templates take."""


class PointwiseProgram(Program, frozen=True, dict=True):
    """An elementwise program over ``numel`` elements."""

    numel: int
    values: tuple[Value, ...]
    stores: tuple[Store, ...]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Values needed by the stores, in execution order."""
        return needed(self.values, (store.value for store in self.stores))


class RowProgram(Program, frozen=True, dict=True):
    """A program over ``rows`` x ``cols`` whose reductions run over each row. ``stores`` follow the reductions."""

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
        """For each value whether it is one number per row (or one for all), rather than one per element."""
        found: list[bool] = []
        for value in self.values:
            if value.op == "load":
                found.append(value.access.count == 1 or value.access.inner % self.cols == 0)
            else:
                found.append(all(found[arg] for arg in value.args))
        return tuple(found)

    @cached_property
    def passes(self) -> tuple[tuple[int, ...], ...]:
        """Reductions by pass: those of one pass depend only on reductions of earlier passes."""
        depth: list[int] = []
        for reduction in self.reductions:
            used = self.reductions_of(reduction.source)
            depth.append(1 + max((depth[k] for k in used), default=-1))
        return tuple(
            tuple(k for k, level in enumerate(depth) if level == wanted) for wanted in range(max(depth, default=-1) + 1)
        )

    @cached_property
    def element_stores(self) -> tuple[Store, ...]:
        return tuple(store for store in self.stores if not store.per_row)

    @cached_property
    def row_stores(self) -> tuple[Store, ...]:
        return tuple(store for store in self.stores if store.per_row)

    def reductions_of(self, value: int) -> frozenset[int]:
        """Reductions whose results ``value`` uses directly (not those that lie behind them)."""
        return frozenset(
            self.values[k].reduction for k in needed(self.values, (value,)) if self.values[k].op == "reduced"
        )

    def element_order(self, values: Iterable[int]) -> tuple[int, ...]:
        """Per-element values needed for ``values``, in execution order: the body of a loop over the row."""
        return tuple(k for k in needed(self.values, values) if not self.per_row[k])

    def row_order(self, values: Iterable[int]) -> tuple[int, ...]:
        """Per-row values needed for ``values``, in execution order: computed once before the loop."""
        return tuple(k for k in needed(self.values, values) if self.per_row[k])

    @cached_property
    def fused_pairs(self) -> tuple[FusedPair, ...]:
        """Pairs of dependent reductions that one pass can compute."""
        found = []
        for second, reduction in enumerate(self.reductions):
            for first in self.reductions_of(reduction.source):
                if (pair := _fuse(self, first, second)) is not None:
                    found.append(pair)
        return tuple(found)

    @property
    def fusable_pair(self) -> FusedPair | None:
        """A pair whose two passes hold nothing else, so that fusing it saves a whole pass."""
        for pair in self.fused_pairs:
            at = next(n for n, group in enumerate(self.passes) if pair.first in group)
            rest = set(self.passes[at + 1]) - {pair.second, pair.correction} if at + 1 < len(self.passes) else {-1}
            if self.passes[at] == (pair.first,) and not rest:
                return pair
        return None


def needed(values: tuple[Value, ...], roots: Iterable[int]) -> tuple[int, ...]:
    """Positions that ``roots`` depend on, themselves included, ascending. Does not look behind ``reduced``."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        position = waiting.pop()
        if position not in seen:
            seen.add(position)
            waiting.extend(values[position].args)
    return tuple(sorted(seen))


def _fuse(program: RowProgram, first: int, second: int) -> FusedPair | None:
    a, b = program.reductions[first], program.reductions[second]
    values, x = program.values, program.reductions[first].source
    if b.op != "sum" or program.per_row[x] or program.reductions_of(b.source) != {first}:
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


def _is_mean(program: RowProgram, position: int, reduction: int) -> bool:
    """Whether a value is sum / cols, written as a division or as a multiplication by 1 / cols."""
    value = program.values[position]
    if len(value.args) != 2 or not _is_reduced(program.values[value.args[0]], reduction):
        return False
    factor = program.values[value.args[1]]
    if factor.op != "const":
        return False
    return (value.op == "div" and factor.number == program.cols) or (
        value.op == "mul" and factor.number == 1.0 / program.cols
    )
