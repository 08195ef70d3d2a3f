"""What holds of a problem's floating-point inputs in every draw, and is to hold of all that are made of them.

A triangular matrix stays one, and so do symmetric ones, rows that sum to one, sorted values and values of a few kinds
(a one-hot row, a permutation, a mask), for a kernel may rely on that. That all are positive, or near a half, is no
structure: it is what the draws happen to hold. Imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_LEAST = 64
"""Of fewer elements anything holds by chance."""
_FEW, _SAMPLED = 16, 4096
_SAME_PLACES = 0.99
"""The share of zeros that stand where they stand in every draw, if it is no chance that they are zero."""
_LEAST_SORTED = 12
_ONE = 0.02


@dataclass(frozen=True)
class Structure:
    """``kept``: zeros and infinities that stand at the same places in every draw, NaN elsewhere; or None. ``discrete``:
    few different values, which no mixture has; ``constant``: the same in every draw.
    """

    kept: torch.Tensor | None = None
    symmetric: bool = False
    sums_to_one: bool = False
    ascends: bool = False
    discrete: bool = False
    constant: bool = False

    def finite(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` with zeros instead of infinities that are kept, for sums and means."""
        return tensor if self.kept is None else torch.where(self.kept.isinf(), 0.0, tensor)

    def restore(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, changed as little as it takes; not for what is discrete."""
        if self.sums_to_one:
            wide = tensor.abs().to(torch.promote_types(tensor.dtype, torch.float32))
            tensor = (wide / wide.sum(-1, keepdim=True)).to(tensor.dtype)
        if self.ascends:
            tensor = tensor.sort(-1).values
        if self.symmetric:
            tensor = tensor.triu() + tensor.triu(1).mT
        if self.kept is not None:
            tensor = torch.where(self.kept.isnan(), tensor, self.kept)
        return tensor


def structure_of(first: torch.Tensor, second: torch.Tensor) -> Structure | None:
    """What holds in two draws of one floating-point input, None where that is nothing."""
    draws = (first, second)
    if first.numel() < _LEAST or any(bool(draw.isnan().any()) or bool(draw.min() == draw.max()) for draw in draws):
        return None
    if all(_is_discrete(draw) for draw in draws):
        return Structure(discrete=True, constant=torch.equal(first, second))
    made = Structure(
        kept=_kept(first, second),
        symmetric=all(_is_symmetric(draw) for draw in draws),
        sums_to_one=all(_sums_to_one(draw) for draw in draws),
        ascends=all(_ascends(draw) for draw in draws),
    )
    holds = made.kept is not None or made.symmetric or made.sums_to_one or made.ascends
    return made if holds else None


def _is_discrete(draw: torch.Tensor) -> bool:
    flat = draw.reshape(-1)
    few = min(_FEW, flat.numel() // 4)
    step = max(1, flat.numel() // _SAMPLED)
    return bool(flat[::step].unique().numel() <= few and flat.unique().numel() <= few)


def _kept(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor | None:
    special = [(draw == 0) | draw.isinf() for draw in (first, second)]
    both = special[0] & special[1] & (first == second)
    count = int(both.sum())
    if not count or count < _SAME_PLACES * max(int(one.sum()) for one in special):
        return None
    return torch.where(both, first, torch.nan)


def _is_symmetric(draw: torch.Tensor) -> bool:
    return bool(draw.dim() >= 2 and draw.shape[-1] == draw.shape[-2] > 1 and torch.equal(draw, draw.mT))


def _sums_to_one(draw: torch.Tensor) -> bool:
    if draw.dim() == 0 or draw.shape[-1] < 2 or bool((draw < 0).any()):
        return False
    sums = draw.sum(-1, dtype=torch.promote_types(draw.dtype, torch.float32))
    return bool(((sums - 1).abs() <= min(16 * torch.finfo(draw.dtype).eps, _ONE)).all())


def _ascends(draw: torch.Tensor) -> bool:
    compared = draw.numel() - draw.numel() // max(draw.shape[-1], 1)
    return compared >= _LEAST_SORTED and bool((draw[..., 1:] >= draw[..., :-1]).all())
