"""Input distributions for judging: pure transforms of drawn inputs that a kernel cannot tell from real ones.

A kernel that uses a property of the inputs as drawn (all positive, mean one half, values near one) fails on them.
Imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

Kind = Literal["drawn", "negated", "small", "large", "centred", "offset"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def transform(leaves: Sequence[Any], kind: Kind) -> list[Any]:
    """New leaves; floating-point tensors are transformed, everything else is passed on as it is.

    ``negated``: -x. ``small``: x / 100. ``large``: 100 x. ``centred``: x minus its mean. ``offset``: x plus three
    of its standard deviations.
    """
    return [_transform(leaf, kind) if _is_float(leaf) else leaf for leaf in leaves]


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _transform(x: torch.Tensor, kind: Kind) -> torch.Tensor:
    if kind == "drawn":
        return x
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
