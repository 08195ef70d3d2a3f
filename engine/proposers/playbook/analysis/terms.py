"""Terms: the traced reference as elementwise operations, reductions and broadcasts of shaped values.

Terms are the step between the graph of ATen operators and the programs in ``ir``. Each term has a shape. Terms express
composite operators (``silu``, ``native_layer_norm``) in primitives, with constants folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.ir import sizes
from engine.proposers.playbook.ir.program import COMPARE_OPS, LOGIC_OPS, ReduceOp
from engine.proposers.playbook.ir.sizes import Size

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Term:
    """One shaped value of a traced reference, compared by identity.

    Attributes:
        op: An ``op`` of :class:`ir.program.Value`, or one of the following. ``position`` is an element's index.
            ``reduce`` reduces the dimensions ``dims`` of ``args[0]``; ``cols`` is the product of their sizes. ``view``
            reshapes ``args[0]`` without reordering its elements. ``expand`` broadcasts ``args[0]``.
        text: The C expression of a constant that derives from the header's sizes; "" for any other constant.
    """

    op: str
    shape: Shape
    args: tuple[Term, ...] = ()
    number: float = 0.0
    tensor: str = ""
    reduce: ReduceOp = "sum"
    cols: int = 1
    dims: tuple[int, ...] = ()
    text: str = ""

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def truth(self) -> bool:
        """Whether the term is a Boolean rather than a number."""
        if self.op in ("view", "expand"):
            return self.args[0].truth
        return self.op in TRUTH_OPS


Operand = Term | float

TRUTH_OPS = COMPARE_OPS | LOGIC_OPS | {"not"}

_FOLD: Mapping[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b if b else math.copysign(math.inf, a * math.copysign(1.0, b)) if a else math.nan,
}
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_NEUTRAL = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}
_LARGEST_PRODUCT_POWER = 8
_LARGEST_POSITION = 1 << 24


def number(value: float, text: str = "") -> Term:
    return Term("const", (), number=float(value), text=text)


def load(tensor: str, shape: Shape) -> Term:
    return Term("load", shape, tensor=tensor)


def positions(size: int) -> Term:
    """Return the numbers 0 to ``size`` - 1. Raises ``Unsupported`` if fp32 cannot represent these numbers."""
    if size > _LARGEST_POSITION:
        raise Unsupported(
            f"the model needs integers up to {size}, but fp32 is exact only for integers up to {_LARGEST_POSITION}"
        )
    return Term("position", (size,))


def apply(op: str, *operands: Operand) -> Term:
    """Return an elementwise operation with PyTorch's broadcasting, and simplify trivial operations."""
    args = tuple(arg if isinstance(arg, Term) else number(arg) for arg in operands)
    wanted = len(args) if op in LOGIC_OPS or op == "not" else 1 if op == "select" else 0
    args = tuple(_as_truth(arg) if k < wanted else _as_number(arg) for k, arg in enumerate(args))
    if len(args) == 2 and op in _FOLD:
        first, second = args
        if first.op == second.op == "const":
            return number(_FOLD[op](first.number, second.number), _folded_text(op, first, second))
        if second.op == "const" and second.number == _NEUTRAL[op] and not second.text:
            return first
        if first.op == "const" and op in ("add", "mul") and first.number == _NEUTRAL[op] and not first.text:
            return second
    if op == "neg" and args[0].op == "const":
        return number(-args[0].number, f"-({args[0].text})" if args[0].text else "")
    return Term(op, broadcast(*(arg.shape for arg in args)), args)


def _folded_text(op: str, first: Term, second: Term) -> str:
    """Return the C expression of a constant folded from two constants; "" if neither constant derives from a size."""
    if not (first.text or second.text) or not (math.isfinite(first.number) and math.isfinite(second.number)):
        return ""
    return f"({first.text or repr(first.number)}) {_SIGNS[op]} ({second.text or repr(second.number)})"


def _as_truth(term: Term) -> Term:
    return term if term.truth else apply("ne", term, 0.0)


def _as_number(term: Term) -> Term:
    return apply("select", term, 1.0, 0.0) if term.truth else term


def power(base: Operand, exponent: Operand) -> Term:
    """Return base ** exponent, as products and roots for suitable constant exponents."""
    value = exponent.number if isinstance(exponent, Term) and exponent.op == "const" else exponent
    if isinstance(value, Term):
        return apply("pow", base, value)
    if not isinstance(base, Term):
        return apply("pow", base, value)
    if value == 0.5:
        return apply("sqrt", base)
    if value == -0.5:
        return apply("rsqrt", base)
    if value in (-1.0, -2.0):
        return apply("reciprocal", power(base, -value))
    if value == int(value) and 1 <= value <= _LARGEST_PRODUCT_POWER:
        return _product(base, int(value))
    return apply("pow", base, value)


def _product(base: Term, exponent: int) -> Term:
    if exponent == 1:
        return base
    half = _product(base, exponent // 2)
    square = apply("mul", half, half)
    return apply("mul", square, base) if exponent % 2 else square


def view(term: Term, shape: Shape) -> Term:
    return term if term.shape == shape else Term("view", sizes.viewed(term.shape, shape), (term,))


def expand(term: Term, shape: Shape) -> Term:
    """Return ``term`` broadcast to ``shape``."""
    return term if term.shape == shape else Term("expand", sizes.expanded(term.shape, shape), (term,))


def reduce(op: ReduceOp, term: Term, dims: Sequence[int] | None, keepdim: bool) -> Term:
    """Return a reduction over ``dims``, or over all dimensions if ``dims`` is empty. Raises ``Unsupported``."""
    rank = len(term.shape)
    chosen = {dim % rank for dim in dims} if dims and rank else set(range(rank))
    if term.numel == 0:
        raise Unsupported("the model reduces an empty tensor")
    reduced = tuple(dim for dim in sorted(chosen) if term.shape[dim] != 1)
    cols = prod(term.shape[dim] for dim in reduced)
    kept = tuple(1 if dim in chosen else size for dim, size in enumerate(term.shape))
    flat = tuple(size for dim, size in enumerate(term.shape) if dim not in chosen)
    result = Term("reduce", kept, (term,), reduce=op, cols=cols, dims=reduced)
    return result if keepdim else view(result, flat)


def mean(term: Term, dims: Sequence[int] | None, keepdim: bool) -> Term:
    total = reduce("sum", term, dims, keepdim)
    cols = _row_length(term, total)
    return apply("mul", total, number(1.0 / cols, f"1.0 / {sizes.factor(cols)}" if isinstance(cols, Size) else ""))


def centred(term: Term, dims: Sequence[int] | None) -> Term:
    """Return x - mean(x), where the mean keeps the reduced dimensions."""
    return apply("sub", term, mean(term, dims, True))


def variance(term: Term, dims: Sequence[int] | None, correction: float, keepdim: bool) -> Term:
    """Return the two-pass variance: the sum of (x - mean) ** 2, divided by count - correction."""
    deviation = centred(term, dims)
    total = reduce("sum", apply("mul", deviation, deviation), dims, keepdim)
    count = _row_length(term, total)
    if count <= correction:
        raise Unsupported(f"the model takes the variance of too few elements ({count}, with correction {correction:g})")
    words = f"1.0 / ({sizes.text(count)} - {correction!r})" if isinstance(count, Size) else ""
    return apply("mul", total, number(1.0 / (count - correction), words))


def _row_length(term: Term, total: Term) -> int:
    """Return the number of elements of ``term`` that each element of ``total`` sums."""
    return total.args[0].cols if total.op == "view" else total.cols


def softmax_parts(term: Term, dims: Sequence[int]) -> tuple[Term, Term, Term]:
    """Return x - max(x), its exponential, and the sum of the exponentials, which keeps the reduced dimensions."""
    shifted = apply("sub", term, reduce("max", term, dims, True))
    exponential = apply("exp", shifted)
    return shifted, exponential, reduce("sum", exponential, dims, True)


def broadcast(*shapes: Shape) -> Shape:
    """Return PyTorch's broadcast shape. The trace has already checked that the shapes are compatible."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(_broadcast_size(each) for each in zip(*padded, strict=True))


def _broadcast_size(given: Sequence[int]) -> int:
    """Return a broadcast dimension's size. If an operand's size has a name, the result keeps that name."""
    wide = [size for size in given if size != 1]
    return next((size for size in wide if isinstance(size, Size)), wide[0] if wide else 1)
