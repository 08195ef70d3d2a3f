"""Detect structure that a problem's inputs share across draws, and restore the structure in derived inputs.

Integers and booleans may depend on each other: for example, indices lie within bounds, and lengths have a fixed sum.
The judge therefore draws new integers and booleans instead of deriving them.

Kernels may rely on triangular and symmetric matrices, rows that sum to one, sorted values, and few distinct values
(one-hot rows, permutations, masks). Kernels may not rely on the range of values, for example that all values are
positive. Imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.evaluation.judge_policy import POLICY

_INPUTS = POLICY.inputs


@dataclass(frozen=True)
class Structure:
    """An input's structure.

    ``kept``: zeros and infinities at positions that every draw shares, and NaN elsewhere; None if there are too few to
    prove structure. ``discrete``: whether the input has few distinct values, so that mixtures are impossible. Integers
    and booleans are always discrete. ``constant``: whether the input is equal in every draw.
    """

    kept: torch.Tensor | None = None
    symmetric: bool = False
    sums_to_one: bool = False
    ascends: bool = False
    descends: bool = False
    discrete: bool = False
    constant: bool = False

    def finite(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` with kept infinities replaced by zeros, for sums and means."""
        return tensor if self.kept is None else torch.where(self.kept.isinf(), 0.0, tensor)

    def restore(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor``, changed as little as possible to restore the structure. Do not call this method for
        discrete inputs.
        """
        if self.sums_to_one:
            wide = tensor.abs().to(torch.promote_types(tensor.dtype, torch.float32))
            tensor = (wide / wide.sum(-1, keepdim=True)).to(tensor.dtype)
        if self.ascends or self.descends:
            tensor = tensor.sort(-1, descending=self.descends).values
        if self.symmetric:
            tensor = tensor.triu() + tensor.triu(1).mT
        if self.kept is not None:
            tensor = torch.where(self.kept.isnan(), tensor, self.kept)
        return tensor


def structure_of(first: torch.Tensor, second: torch.Tensor) -> Structure | None:
    """Return the structure that two draws of one input share, or None if they share none."""
    draws = (first, second)
    if first.is_complex():
        return None
    if is_discrete(first):
        return Structure(discrete=True, constant=torch.equal(first, second))
    if first.numel() < 2 or any(bool(draw.isnan().any()) or bool(draw.min() == draw.max()) for draw in draws):
        return None
    ascends = all(_ascends(draw) for draw in draws)
    descends = all(_ascends(draw.flip(-1)) for draw in draws)
    if first.numel() < _INPUTS.least_structured and not ascends and not descends:
        return None
    kept = _kept(first, second)
    if all(_has_few_values(draw) for draw in draws) or (kept is not None and (ascends or descends)):
        return Structure(discrete=True, constant=torch.equal(first, second))
    made = Structure(
        kept=kept,
        symmetric=all(_is_symmetric(draw) for draw in draws),
        sums_to_one=all(_sums_to_one(draw) for draw in draws),
        ascends=ascends,
        descends=descends,
    )
    return made if made != Structure() else None


def is_discrete(tensor: torch.Tensor) -> bool:
    """Return whether the tensor contains integers or booleans."""
    return not tensor.is_floating_point() and not tensor.is_complex()


def _has_few_values(draw: torch.Tensor) -> bool:
    flat = draw.reshape(-1)
    few = min(_INPUTS.few_values, flat.numel() // 4)
    step = max(1, flat.numel() // _INPUTS.sampled)
    return bool(flat[::step].unique().numel() <= few and flat.unique().numel() <= few)


def _kept(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor | None:
    special = [(draw == 0) | draw.isinf() for draw in (first, second)]
    both = special[0] & special[1] & (first == second)
    count = int(both.sum())
    if not count or count < _INPUTS.same_places * max(int(one.sum()) for one in special):
        return None
    return torch.where(both, first, torch.nan)


def _is_symmetric(draw: torch.Tensor) -> bool:
    return bool(draw.dim() >= 2 and draw.shape[-1] == draw.shape[-2] > 1 and torch.equal(draw, draw.mT))


def _sums_to_one(draw: torch.Tensor) -> bool:
    if draw.dim() == 0 or draw.shape[-1] < 2 or bool((draw < 0).any()):
        return False
    sums = draw.sum(-1, dtype=torch.promote_types(draw.dtype, torch.float32))
    return bool(((sums - 1).abs() <= min(16 * torch.finfo(draw.dtype).eps, _INPUTS.sum_to_one)).all())


def _ascends(draw: torch.Tensor) -> bool:
    compared = draw.numel() - draw.numel() // max(draw.shape[-1], 1)
    return compared >= _INPUTS.least_sorted and bool((draw[..., 1:] >= draw[..., :-1]).all())
