"""Define each ATen operator as terms in primitive operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Literal

from engine.proposers.playbook.analysis import terms as t
from engine.proposers.playbook.analysis.terms import Operand, Shape, Term
from engine.proposers.playbook.base import Unsupported

Lowered = Term | tuple[Term | None, ...]
"""An operator's result: one or several terms. ``getitem`` selects one of several terms; None marks a result without a
term.
"""

Rule = Callable[..., Lowered]


def _elementwise(op: str) -> Rule:
    return lambda *args: t.apply(op, *args)


def _add(a: Operand, b: Operand, *, alpha: float = 1) -> Term:
    return t.apply("add", a, t.apply("mul", b, alpha))


def _sub(a: Operand, b: Operand, *, alpha: float = 1) -> Term:
    return t.apply("sub", a, t.apply("mul", b, alpha))


def _rsub(a: Operand, b: Operand, alpha: float = 1) -> Term:
    return t.apply("sub", b, t.apply("mul", a, alpha))


def _div_mode(a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Term:
    quotient = t.apply("div", a, b)
    return t.apply(rounding_mode, quotient) if rounding_mode else quotient


def _clamp(x: Term, low: Operand | None = None, high: Operand | None = None) -> Term:
    at_least = x if low is None else t.apply("max", x, low)
    return at_least if high is None else t.apply("min", at_least, high)


def _silu(x: Term) -> Term:
    return t.apply("mul", x, t.apply("sigmoid", x))


def _gelu(x: Term, *, approximate: str = "none") -> Term:
    half = t.apply("mul", x, 0.5)
    if approximate == "none":
        return t.apply("mul", half, t.apply("add", t.apply("erf", t.apply("mul", x, math.sqrt(0.5))), 1.0))
    cube = t.apply("mul", t.apply("mul", x, x), x)
    inner = t.apply("mul", t.apply("add", x, t.apply("mul", cube, 0.044715)), math.sqrt(2.0 / math.pi))
    return t.apply("mul", half, t.apply("add", t.apply("tanh", inner), 1.0))


def _softplus(x: Term, beta: float = 1, threshold: float = 20) -> Term:
    scaled = t.apply("mul", x, beta)
    soft = t.apply("div", t.apply("log1p", t.apply("exp", scaled)), beta)
    return t.apply("select", t.apply("gt", scaled, threshold), x, soft)


def _log_sigmoid(x: Term) -> Lowered:
    # min(x, 0) - log1p(exp(-|x|)) is stable on both sides.
    tail = t.apply("log1p", t.apply("exp", t.apply("neg", t.apply("abs", x))))
    return (t.apply("sub", t.apply("min", x, 0.0), tail), None)


def _leaky_relu(x: Term, slope: float = 0.01) -> Term:
    return t.apply("select", t.apply("gt", x, 0.0), x, t.apply("mul", x, slope))


def _prelu(x: Term, weight: Term) -> Term:
    return t.apply("select", t.apply("gt", x, 0.0), x, t.apply("mul", weight, x))


def _elu(x: Term, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Term:
    negative = t.apply("mul", t.apply("expm1", t.apply("mul", x, input_scale)), alpha * scale)
    return t.apply("select", t.apply("gt", x, 0.0), t.apply("mul", x, scale), negative)


def _hardtanh(x: Term, low: float = -1, high: float = 1) -> Term:
    return _clamp(x, low, high)


def _hardsigmoid(x: Term) -> Term:
    return t.apply("mul", _clamp(t.apply("add", x, 3.0), 0.0, 6.0), 1.0 / 6.0)


def _hardswish(x: Term) -> Term:
    return t.apply("mul", x, _hardsigmoid(x))


def _mish(x: Term) -> Term:
    return t.apply("mul", x, t.apply("tanh", _softplus(x)))


def _threshold(x: Term, threshold: float, value: float) -> Term:
    return t.apply("select", t.apply("gt", x, threshold), x, value)


def _logaddexp(a: Term, b: Term) -> Term:
    high = t.apply("max", a, b)
    gap = t.apply("neg", t.apply("abs", t.apply("sub", a, b)))
    return t.apply("add", high, t.apply("log1p", t.apply("exp", gap)))


def _triangle(compare: Literal["ge", "le"]) -> Rule:
    """Return the rule that sets elements on one side of a diagonal to 0. An element keeps its value if
    ``compare(column - row, diagonal)`` is true.
    """

    def rule(x: Term, diagonal: int = 0) -> Term:
        rows, cols = x.shape[-2:]
        place = t.apply("sub", t.positions(cols), t.view(t.positions(rows), (rows, 1)))
        return t.apply("select", t.apply(compare, place, diagonal), x, 0.0)

    return rule


def _addcmul(x: Term, a: Term, b: Term, *, value: float = 1) -> Term:
    return t.apply("add", x, t.apply("mul", t.apply("mul", a, b), value))


def _addcdiv(x: Term, a: Term, b: Term, *, value: float = 1) -> Term:
    return t.apply("add", x, t.apply("mul", t.apply("div", a, b), value))


def _lerp(a: Term, b: Term, weight: Operand) -> Term:
    return t.apply("add", a, t.apply("mul", weight, t.apply("sub", b, a)))


def _where(condition: Term, a: Operand, b: Operand) -> Term:
    return t.apply("select", condition, a, b)


def _masked_fill(x: Term, mask: Term, value: Operand) -> Term:
    return t.apply("select", mask, value, x)


def _scaled(op: str, factor: float) -> Rule:
    return lambda x: t.apply("mul", t.apply(op, x), factor)


def _xlogy(a: Operand, b: Operand) -> Term:
    return t.apply("select", t.apply("eq", a, 0.0), 0.0, t.apply("mul", a, t.apply("log", b)))


# Losses. ``reduction`` is 0 for none, 1 for the mean and 2 for the sum.


def _reduced(x: Term, reduction: int) -> Term:
    return x if reduction == 0 else t.mean(x, None, False) if reduction == 1 else t.reduce("sum", x, None, False)


def _mse_loss(a: Term, b: Term, reduction: int = 1) -> Term:
    return _reduced(t.power(t.apply("sub", a, b), 2.0), reduction)


def _smooth_l1_loss(a: Term, b: Term, reduction: int = 1, beta: float = 1.0) -> Term:
    gap = t.apply("abs", t.apply("sub", a, b))
    if beta == 0:
        return _reduced(gap, reduction)
    square = t.apply("mul", t.apply("mul", gap, gap), 0.5 / beta)
    return _reduced(t.apply("select", t.apply("lt", gap, beta), square, t.apply("sub", gap, 0.5 * beta)), reduction)


def _huber_loss(a: Term, b: Term, reduction: int = 1, delta: float = 1.0) -> Term:
    gap = t.apply("abs", t.apply("sub", a, b))
    square = t.apply("mul", t.apply("mul", gap, gap), 0.5)
    linear = t.apply("mul", t.apply("sub", gap, 0.5 * delta), delta)
    return _reduced(t.apply("select", t.apply("le", gap, delta), square, linear), reduction)


# Reductions and normalizations


def _sum(x: Term, dims: list[int] | None = None, keepdim: bool = False, *, dtype: str | None = None) -> Term:
    _refuse_dtype(dtype)
    return t.reduce("sum", x, dims, keepdim)


def _mean(x: Term, dims: list[int] | None = None, keepdim: bool = False, *, dtype: str | None = None) -> Term:
    _refuse_dtype(dtype)
    return t.mean(x, dims, keepdim)


def _amax(x: Term, dims: list[int] | None = None, keepdim: bool = False) -> Term:
    return t.reduce("max", x, dims, keepdim)


def _amin(x: Term, dims: list[int] | None = None, keepdim: bool = False) -> Term:
    return t.reduce("min", x, dims, keepdim)


def _max_dim(x: Term, dim: int, keepdim: bool = False) -> Lowered:
    return (t.reduce("max", x, [dim], keepdim), t.reduce("argmax", x, [dim], keepdim))


def _min_dim(x: Term, dim: int, keepdim: bool = False) -> Lowered:
    return (t.reduce("min", x, [dim], keepdim), t.reduce("argmin", x, [dim], keepdim))


def _arg(op: Literal["argmax", "argmin"]) -> Rule:
    return lambda x, dim=None, keepdim=False: t.reduce(op, x, None if dim is None else [dim], keepdim)


def _prod(x: Term, dim: int | None = None, keepdim: bool = False, *, dtype: str | None = None) -> Term:
    _refuse_dtype(dtype)
    return t.reduce("prod", x, None if dim is None else [dim], keepdim)


def _var(x: Term, dims: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Term:
    return t.variance(x, dims, 1.0 if correction is None else float(correction), keepdim)


def _std(x: Term, dims: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Term:
    return t.apply("sqrt", _var(x, dims, correction=correction, keepdim=keepdim))


def _var_mean(
    x: Term, dims: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Lowered:
    return (_var(x, dims, correction=correction, keepdim=keepdim), t.mean(x, dims, keepdim))


def _vector_norm(
    x: Term, order: float = 2, dims: list[int] | None = None, keepdim: bool = False, *, dtype: str | None = None
) -> Term:
    _refuse_dtype(dtype)
    if order == 2:
        return t.apply("sqrt", t.reduce("sum", t.apply("mul", x, x), dims, keepdim))
    magnitude = t.apply("abs", x)
    if order == 1:
        return t.reduce("sum", magnitude, dims, keepdim)
    if order in (math.inf, -math.inf):
        return t.reduce("max" if order > 0 else "min", magnitude, dims, keepdim)
    return t.power(t.reduce("sum", t.power(magnitude, order), dims, keepdim), 1.0 / order)


def _logsumexp(x: Term, dims: list[int], keepdim: bool = False) -> Term:
    highest = t.reduce("max", x, dims, True)
    # A row whose maximum is infinite would yield inf - inf.
    finite = t.apply("select", t.apply("eq", t.apply("abs", highest), math.inf), 0.0, highest)
    total = t.reduce("sum", t.apply("exp", t.apply("sub", x, finite)), dims, True)
    result = t.apply("add", t.apply("log", total), finite)
    dropped = {dim % len(x.shape) for dim in dims}
    flat = tuple(size for dim, size in enumerate(x.shape) if dim not in dropped)
    return result if keepdim else t.view(result, flat)


def _softmax(x: Term, dim: int, half_to_float: bool = False) -> Term:
    _, exponential, total = t.softmax_parts(x, [dim])
    return t.apply("div", exponential, total)


def _log_softmax(x: Term, dim: int, half_to_float: bool = False) -> Term:
    shifted, _, total = t.softmax_parts(x, [dim])
    return t.apply("sub", shifted, t.apply("log", total))


def _normalised(x: Term, dims: list[int], eps: float) -> tuple[Term, Term, Term]:
    """Return (x - mean) / sqrt(var + eps), mean and 1 / sqrt(var + eps).

    If the mean is near 1000, rounding it to fp32 causes an error of 3e-5, which is visible if the deviations are near
    0.1. Subtracting the mean of the deviations corrects this error. The pass that sums the deviations' squares also
    sums the deviations.
    """
    mean = t.mean(x, dims, True)
    deviation = t.apply("sub", x, mean)
    correction = t.mean(deviation, dims, True)
    squares = t.mean(t.apply("mul", deviation, deviation), dims, True)
    spread = t.apply("sub", squares, t.apply("mul", correction, correction))
    inverse = t.apply("rsqrt", t.apply("add", spread, eps))
    return t.apply("mul", t.apply("sub", deviation, correction), inverse), mean, inverse


def _layer_norm(x: Term, shape: list[int], weight: Term | None, bias: Term | None, eps: float) -> Lowered:
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    result, mean, inverse = _normalised(x, dims, eps)
    if weight is not None:
        result = t.apply("mul", result, weight)
    if bias is not None:
        result = t.apply("add", result, bias)
    return (result, mean, inverse)


def _group_norm(
    x: Term, weight: Term | None, bias: Term | None, batch: int, channels: int, area: int, groups: int, eps: float
) -> Lowered:
    # The dimensions of x equal the arguments, but carry names.
    batch, channels, area = x.shape[0], x.shape[1], prod(x.shape[2:])
    rows = t.view(x, (batch, groups, channels // groups, area))
    result, mean, inverse = _normalised(rows, [2, 3], eps)
    if weight is not None:
        result = t.apply("mul", result, t.view(weight, (1, groups, channels // groups, 1)))
    if bias is not None:
        result = t.apply("add", result, t.view(bias, (1, groups, channels // groups, 1)))
    return (t.view(result, x.shape), t.view(mean, (batch, groups)), t.view(inverse, (batch, groups)))


def _batch_norm(
    x: Term,
    weight: Term | None,
    bias: Term | None,
    mean: Term | None,
    var: Term | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Lowered:
    """Normalize each channel. ``mean`` and ``var`` are the running statistics, which a model reads only in evaluation
    mode.
    """
    channels = (1, x.shape[1], *(1 for _ in x.shape[2:]))
    saved: tuple[Term, ...] = ()
    if training:
        dims = [dim for dim in range(len(x.shape)) if dim != 1]
        result, new_mean, inverse = _normalised(x, dims, eps)
        saved = (t.view(new_mean, (x.shape[1],)), t.view(inverse, (x.shape[1],)))
    elif mean is None or var is None:
        raise Unsupported("the model uses batch normalization without running statistics")
    else:
        inverse = t.view(t.apply("rsqrt", t.apply("add", var, eps)), channels)
        result = t.apply("mul", t.apply("sub", x, t.view(mean, channels)), inverse)
    if weight is not None:
        result = t.apply("mul", result, t.view(weight, channels))
    if bias is not None:
        result = t.apply("add", result, t.view(bias, channels))
    return (result, *saved)


def _rms_norm(x: Term, shape: list[int], weight: Term | None = None, eps: float | None = None) -> Lowered:
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    squares = t.mean(t.apply("mul", x, x), dims, True)
    inverse = t.apply("rsqrt", t.apply("add", squares, 2.0**-23 if eps is None else eps))
    result = t.apply("mul", x, inverse)
    return (result if weight is None else t.apply("mul", result, weight), inverse)


def _refuse_dtype(dtype: str | None) -> None:
    if dtype not in (None, "float32"):
        raise Unsupported(f"the model converts a tensor to {dtype}")


RULES: Mapping[str, Rule] = {
    **{
        f"aten.{op}.default": _elementwise(op)
        for op in ("neg", "abs", "sign", "floor", "ceil", "round", "trunc", "exp", "expm1", "log", "log1p", "sqrt",
                   "rsqrt", "reciprocal", "tanh", "sigmoid", "erf", "sin", "cos", "tan", "atan", "sinh", "cosh",
                   "atan2")
    },
    **{f"aten.{op}.{kind}": _elementwise(op) for op in ("mul", "div") for kind in ("Tensor", "Scalar")},
    **{f"aten.{op}.{kind}": _elementwise(op) for op in ("fmod", "lt", "le", "gt", "ge", "eq", "ne")
       for kind in ("Tensor", "Scalar")},
    "aten.triu.default": _triangle("ge"),
    "aten.tril.default": _triangle("le"),
    "aten.add.Tensor": _add,
    "aten.add.Scalar": lambda a, b, alpha=1: _add(a, b, alpha=alpha),
    "aten.sub.Tensor": _sub,
    "aten.sub.Scalar": lambda a, b, alpha=1: _sub(a, b, alpha=alpha),
    "aten.rsub.Scalar": _rsub,
    "aten.rsub.Tensor": lambda a, b, *, alpha=1: _rsub(a, b, alpha),
    "aten.div.Tensor_mode": _div_mode,
    "aten.div.Scalar_mode": _div_mode,
    "aten.pow.Tensor_Scalar": t.power,
    "aten.pow.Tensor_Tensor": t.power,
    "aten.pow.Scalar": t.power,
    "aten.square.default": lambda x: t.power(x, 2.0),
    "aten.exp2.default": lambda x: t.apply("exp", t.apply("mul", x, math.log(2.0))),
    "aten.log2.default": _scaled("log", 1.0 / math.log(2.0)),
    "aten.log10.default": _scaled("log", 1.0 / math.log(10.0)),
    "aten.maximum.default": _elementwise("max"),
    "aten.minimum.default": _elementwise("min"),
    "aten.clamp.default": _clamp,
    "aten.clamp.Tensor": _clamp,
    "aten.clamp_min.default": lambda x, low: _clamp(x, low),
    "aten.clamp_min.Tensor": lambda x, low: _clamp(x, low),
    "aten.clamp_max.default": lambda x, high: _clamp(x, None, high),
    "aten.clamp_max.Tensor": lambda x, high: _clamp(x, None, high),
    "aten.relu.default": lambda x: _clamp(x, 0.0),
    "aten.relu6.default": lambda x: _clamp(x, 0.0, 6.0),
    "aten.silu.default": _silu,
    "aten.gelu.default": _gelu,
    "aten.softplus.default": _softplus,
    "aten.log_sigmoid_forward.default": _log_sigmoid,
    "aten.leaky_relu.default": _leaky_relu,
    "aten._prelu_kernel.default": _prelu,
    "aten.elu.default": _elu,
    "aten.hardtanh.default": _hardtanh,
    "aten.hardsigmoid.default": _hardsigmoid,
    "aten.hardswish.default": _hardswish,
    "aten.mish.default": _mish,
    "aten.threshold.default": _threshold,
    "aten.logaddexp.default": _logaddexp,
    "aten.xlogy.Tensor": _xlogy,
    "aten.mse_loss.default": _mse_loss,
    "aten.smooth_l1_loss.default": _smooth_l1_loss,
    "aten.huber_loss.default": _huber_loss,
    "aten.addcmul.default": _addcmul,
    "aten.addcdiv.default": _addcdiv,
    "aten.lerp.Scalar": _lerp,
    "aten.lerp.Tensor": _lerp,
    "aten.where.self": _where,
    "aten.where.ScalarSelf": _where,
    "aten.where.ScalarOther": _where,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.masked_fill.Tensor": _masked_fill,
    "aten.logical_and.default": _elementwise("and"),
    "aten.logical_or.default": _elementwise("or"),
    "aten.logical_not.default": _elementwise("not"),
    "aten.bitwise_and.Tensor": _elementwise("and"),
    "aten.bitwise_or.Tensor": _elementwise("or"),
    "aten.bitwise_not.default": _elementwise("not"),
    "aten.sum.default": _sum,
    "aten.sum.dim_IntList": _sum,
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten.amax.default": _amax,
    "aten.amin.default": _amin,
    "aten.max.default": lambda x: _amax(x),
    "aten.min.default": lambda x: _amin(x),
    "aten.max.dim": _max_dim,
    "aten.min.dim": _min_dim,
    "aten.argmax.default": _arg("argmax"),
    "aten.argmin.default": _arg("argmin"),
    "aten.prod.default": lambda x, *, dtype=None: _prod(x, dtype=dtype),
    "aten.prod.dim_int": _prod,
    "aten.var.correction": _var,
    "aten.std.correction": _std,
    "aten.var_mean.correction": _var_mean,
    "aten.linalg_vector_norm.default": _vector_norm,
    "aten.norm.Scalar": lambda x, order=2: _vector_norm(x, order),
    "aten.norm.ScalarOpt_dim": _vector_norm,
    "aten.logsumexp.default": _logsumexp,
    "aten._softmax.default": _softmax,
    "aten._log_softmax.default": _log_softmax,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_group_norm.default": _group_norm,
    "aten.native_batch_norm.default": _batch_norm,
    "aten._fused_rms_norm.default": _rms_norm,
}  # fmt: skip

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "squeeze.dim",
        "squeeze.dims", "squeeze.default", "flatten.using_ints", "view_as.default",
    )
)  # fmt: skip
COPIES = frozenset(
    f"aten.{name}.default" for name in ("clone", "contiguous", "detach", "alias", "lift_fresh_copy", "_to_copy")
)
PERMUTATIONS = frozenset({"aten.t.default", "aten.transpose.int", "aten.permute.default"})
EXPANDS = frozenset({"aten.expand.default", "aten.expand_as.default"})
FILLS: Mapping[str, float | None] = {
    "aten.ones_like.default": 1.0,
    "aten.zeros_like.default": 0.0,
    "aten.ones.default": 1.0,
    "aten.zeros.default": 0.0,
    "aten.full.default": None,
    "aten.full_like.default": None,
    "aten.scalar_tensor.default": None,
}
"""The operators that create constant tensors, with their values. None means that the value is an argument of the
operator.
"""


def _permuted(target: str, shape: Shape, args: list[Any]) -> Term:
    """Return the permuted term as a view. Only dimensions of size 1 may move. Otherwise, raise ``Unsupported``."""
    term: Term = args[0]
    order = list(range(len(term.shape)))
    if target == "aten.permute.default":
        order = [dim % len(order) for dim in args[1]]
    elif target == "aten.transpose.int":
        order[args[1]], order[args[2]] = order[args[2]], order[args[1]]
    else:
        order.reverse()
    moved = [dim for dim in order if term.shape[dim] != 1]
    if moved != sorted(moved):
        raise Unsupported(f"the model permutes dimensions of a {list(term.shape)} tensor that are larger than 1")
    return t.view(term, shape)


def lower(target: str, shape: Shape | None, args: list[Any], kwargs: dict[str, Any]) -> Lowered:
    """Return the terms for an operator call whose result has ``shape``. Raises ``Unsupported`` for an unknown
    operator.
    """
    if target in VIEWS and shape is not None:
        return t.view(args[0], shape)
    if target in PERMUTATIONS and shape is not None:
        return _permuted(target, shape, args)
    if target in COPIES:
        _refuse_dtype(kwargs.get("dtype"))
        first: Term = args[0]
        return first
    if target in EXPANDS and shape is not None:
        return t.expand(args[0], shape)
    if target in FILLS:
        constant = FILLS[target]
        value = t.number(constant if constant is not None else args[0 if "scalar_tensor" in target else 1])
        return t.expand(value, shape or ())
    rule = RULES.get(target)
    if rule is None:
        name = target.removeprefix("aten.").split(".")[0]
        raise Unsupported(f"no pattern covers the operator {name}")
    try:
        return rule(*args, **kwargs)
    except TypeError as error:
        raise Unsupported(f"the playbook does not support these arguments of {target} ({error})") from error
