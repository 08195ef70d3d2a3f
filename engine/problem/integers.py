"""Fresh integers and booleans that a problem's model accepts, made from what ``get_inputs`` drew.

An index must stay within its range, offsets must stay sorted, a permutation must stay one, and a mask that is the same
in every draw belongs to the problem. So nothing is made up: values are moved between places and draws, or mirrored
within the range in which they were drawn. Imports torch.
"""

from __future__ import annotations

import random
from typing import Literal

import torch

Order = Literal["constant", "sorted", "distinct", "free"]
"""``constant``: the same in every draw, left alone. ``sorted``: ascending along the last dimension. ``distinct``: no
value twice, as in a permutation. ``free``: anything within the range."""

_SMALL = 16
_EXCHANGED_ONE_IN = 16
_MOST_EXCHANGED = 1 << 15
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes: PyTorch does not index unsigned integers on every device."""


def is_discrete(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` holds integers or booleans."""
    return not tensor.is_floating_point() and not tensor.is_complex()


def order_of(first: torch.Tensor, second: torch.Tensor) -> Order:
    """What holds in two draws of one input, and so is taken for a property that the model needs."""
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
    """``low + high - x`` within the range that was drawn; ``not x`` for booleans."""
    if order == "constant" or drawn.numel() == 0:
        return drawn
    if drawn.dtype == torch.bool:
        return ~drawn
    made = drawn.min() + drawn.max() - drawn
    return made.flip(-1) if order == "sorted" else made


def shuffle_into(
    target: torch.Tensor, own: torch.Tensor, other: torch.Tensor, order: Order, draw: random.Random
) -> None:
    """Fill ``target`` with values that neither draw holds in this arrangement.

    Both are cut at a random place and swapped: copies of whole blocks, which cost no more than loading. Then elements
    at random places change them among each other, or sums of parts of the draws would tell those of the blocks. All
    three contiguous and of one shape.
    """
    count = own.numel()
    if order == "constant" or count < 2:
        target.copy_(own if order == "constant" or draw.random() < 0.5 else other)
        return
    flat, mine, theirs = target.view(-1), own.view(-1), other.view(-1)
    if count <= _SMALL:
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
    """Move one element of each of many equal stretches to the place of that of another; nothing is lost or doubled."""
    count, words = flat.numel(), flat.view(_SIGNED[flat.element_size()])
    stretches = min(max(2, count // _EXCHANGED_ONE_IN), _MOST_EXCHANGED)
    length = count // stretches
    generator = torch.Generator().manual_seed(draw.getrandbits(48))
    places = torch.randint(length, (stretches,), generator=generator) + torch.arange(stretches) * length
    places = (places + draw.randrange(count - stretches * length + 1)).to(flat.device)
    words[places] = words[places.roll(draw.randrange(1, stretches))]
