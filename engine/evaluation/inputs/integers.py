"""From draws of ``get_inputs``, derive fresh integers and booleans that a model accepts.

Indices must stay within their range, offsets must stay sorted, and permutations must stay permutations. A mask is part
of the problem if it is equal in every draw. The judge therefore only moves values between positions and draws, or
mirrors values within the drawn range. Imports torch.
"""

from __future__ import annotations

import random
from typing import Literal

import torch

from engine.evaluation.judge_policy import POLICY

Order = Literal["constant", "sorted", "distinct", "free"]
"""The property that new values keep:

``constant``: the values are equal in every draw and stay unchanged.
``sorted``: the values ascend along the last dimension.
``distinct``: no value occurs twice, as in a permutation.
``free``: the values lie within the drawn range.
"""

_INPUTS = POLICY.inputs
_SIGNED = {dtype.itemsize: dtype for dtype in (torch.int8, torch.int16, torch.int32, torch.int64)}
"""Signed dtypes by size in bytes. These dtypes replace unsigned dtypes, which PyTorch cannot index on every device."""


def is_discrete(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` contains integers or booleans."""
    return not tensor.is_floating_point() and not tensor.is_complex()


def order_of(first: torch.Tensor, second: torch.Tensor) -> Order:
    """Return the property that two draws of one input share. The judge assumes that the model needs this property."""
    if torch.equal(first, second):
        return "constant"
    draws = (first, second)
    if first.dtype == torch.bool or first.numel() < 2:
        return "free"
    if first.shape[-1] > 1 and all(bool((draw[..., 1:] >= draw[..., :-1]).all()) for draw in draws):
        return "sorted"
    if all(draw.unique().numel() == draw.numel() for draw in draws):
        return "distinct"
    return "free"


def mirrored(drawn: torch.Tensor, order: Order) -> torch.Tensor:
    """Return ``low + high - x`` within the drawn range, or ``not x`` for booleans."""
    if order == "constant" or drawn.numel() == 0:
        return drawn
    if drawn.dtype == torch.bool:
        return ~drawn
    made = drawn.min() + drawn.max() - drawn
    return made.flip(-1) if order == "sorted" else made


def shuffle_into(
    target: torch.Tensor, own: torch.Tensor, other: torch.Tensor, order: Order, draw: random.Random
) -> None:
    """Fill ``target`` with values from two draws, in an arrangement that occurs in neither draw.

    All three tensors are contiguous and have the same shape. The function swaps whole blocks between the draws, which
    costs no more than loading the draws. The function then swaps random elements, so that a kernel cannot derive sums
    over the blocks from partial sums of the draws.
    """
    count = own.numel()
    if order == "constant" or count < 2:
        target.copy_(own if order == "constant" or draw.random() < 0.5 else other)
        return
    flat, mine, theirs = target.view(-1), own.view(-1), other.view(-1)
    if count <= _INPUTS.few_integers:
        if order == "distinct":
            flat.copy_(mine[torch.tensor(draw.sample(range(count), count), device=own.device)])
            return
        chosen = torch.tensor([draw.random() < 0.5 for _ in range(count)], device=own.device)
        flat.copy_(torch.where(chosen, mine, theirs))
    else:
        cut = draw.randrange(1, count)
        flat[:cut].copy_((mine if order == "distinct" else theirs)[count - cut :])
        flat[cut:].copy_(mine[: count - cut])
        _exchange(flat, draw)
    if order == "sorted":
        target.copy_(target.sort(dim=-1).values)


def _exchange(flat: torch.Tensor, draw: random.Random) -> None:
    """Swap elements at random positions between ranges of equal length. The swap preserves all values."""
    count, words = flat.numel(), flat.view(_SIGNED[flat.element_size()])
    stretches = min(max(2, count // _INPUTS.exchanged_one_in), _INPUTS.most_exchanged)
    length = count // stretches
    generator = torch.Generator().manual_seed(draw.getrandbits(48))
    places = torch.randint(length, (stretches,), generator=generator) + torch.arange(stretches) * length
    places = (places + draw.randrange(count - stretches * length + 1)).to(flat.device)
    words[places] = words[places.roll(draw.randrange(1, stretches))]
