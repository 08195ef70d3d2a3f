"""Give drawn inputs other distributions. A kernel cannot distinguish the transformed inputs from real inputs.

The transformed inputs expose a kernel that exploits a property of the drawn inputs. For example, all drawn values may
be positive or close to one, or a subset may represent the rest. Imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

from engine.evaluation.inputs.structure import Structure
from engine.evaluation.judge_policy import POLICY

Kind = Literal["drawn", "negated", "small", "large", "centred", "heavy_tailed", "offset"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_INPUTS = POLICY.inputs


def transform(leaves: Sequence[Any], kind: Kind, structures: Sequence[Structure | None] = ()) -> list[Any]:
    """Return copies of ``leaves``, with each floating-point tensor transformed unless its structure is discrete.

    ``negated``: -x.
    ``small``: x / 100.
    ``large``: 100 x.
    ``centred``: x minus the mean of x.
    ``heavy_tailed``: x times log-normal random factors, so that no threshold separates the elements that matter.
    ``offset``: x plus three standard deviations.

    ``structures``: the structure that each leaf keeps.
    """
    known = structures or [None] * len(leaves)
    return [_leaf(leaf, kind, structure) for leaf, structure in zip(leaves, known, strict=True)]


def applies(leaves: Sequence[Any], kind: Kind) -> bool:
    """Return whether ``kind`` changes any of ``leaves``."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return kind == "drawn" or any(tensor.is_floating_point() for tensor in tensors)


def _leaf(leaf: Any, kind: Kind, structure: Structure | None) -> Any:
    if kind == "drawn" or not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return leaf
    if structure is None:
        return _transform(leaf, kind)
    return leaf if structure.discrete else structure.restore(_transform(structure.finite(leaf), kind))


def _transform(x: torch.Tensor, kind: Kind) -> torch.Tensor:
    if kind == "negated":
        return -x
    if kind == "small":
        return x * 1e-2
    if kind == "large":
        return x * 1e2
    # In fp32, sums of half-precision values neither overflow nor lose digits.
    wide = torch.promote_types(x.dtype, torch.float32)
    if kind == "heavy_tailed":
        factors = torch.randn(x.shape, dtype=wide, device=x.device).mul_(_INPUTS.tail).exp_()
        return factors.clamp_(max=_INPUTS.most_tail).mul_(x).to(x.dtype)
    if kind == "centred":
        return x - x.mean(dtype=wide).to(x.dtype)
    deviation = x.to(wide).std() if x.numel() > 1 else x.new_ones(())
    return x + (3 * deviation).to(x.dtype)
