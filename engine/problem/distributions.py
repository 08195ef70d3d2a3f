"""Input distributions for judging: pure transforms of drawn inputs that a kernel cannot tell from real ones.

A kernel that uses a property of the inputs as drawn (all positive, mean one half, values near one) fails on them.
Imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

from engine.problem.integers import Order, is_discrete, mirrored
from engine.problem.structure import Structure

Kind = Literal["drawn", "negated", "small", "large", "centred", "offset", "mirrored"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def transform(leaves: Sequence[Any], kind: Kind, orders: Sequence[Order | Structure | None] = ()) -> list[Any]:
    """New leaves; tensors are transformed where ``kind`` means something for their dtype, all else passes as it is.

    For floating-point tensors, ``negated``: -x. ``small``: x / 100. ``large``: 100 x. ``centred``: x minus its mean.
    ``offset``: x plus three of its standard deviations. For integers and booleans, ``mirrored``: reversed within the
    range that was drawn. ``orders``: for each leaf what must hold of its integers, "free" where it is not given, or of
    its floating-point elements.
    """
    known = orders or [None] * len(leaves)
    return [_leaf(leaf, kind, order) for leaf, order in zip(leaves, known, strict=True)]


def applies(leaves: Sequence[Any], kind: Kind) -> bool:
    """Whether ``kind`` changes any of ``leaves``."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if kind == "mirrored":
        return any(is_discrete(tensor) for tensor in tensors)
    return kind == "drawn" or any(tensor.is_floating_point() for tensor in tensors)


def _leaf(leaf: Any, kind: Kind, order: Order | Structure | None) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if kind == "mirrored" and is_discrete(leaf):
        return mirrored(leaf, "free" if order is None or isinstance(order, Structure) else order)
    if kind in ("drawn", "mirrored") or not leaf.is_floating_point():
        return leaf
    if not isinstance(order, Structure):
        return _transform(leaf, kind)
    return leaf if order.discrete else order.restore(_transform(order.finite(leaf), kind))


def _transform(x: torch.Tensor, kind: Kind) -> torch.Tensor:
    if kind == "negated":
        return -x
    if kind == "small":
        return x * 1e-2
    if kind == "large":
        return x * 1e2
    # Sums of many half-precision values need a wider accumulator than their own type.
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    if kind == "centred":
        return x - x.mean(dtype=wide).to(x.dtype)
    deviation = x.to(wide).std() if x.numel() > 1 else x.new_ones(())
    return x + (3 * deviation).to(x.dtype)
