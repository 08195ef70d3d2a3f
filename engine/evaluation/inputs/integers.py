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

RowOrder = Literal["constant", "ascending", "descending", "distinct", "distinct_rows", "columns", "free"]
Order = RowOrder | tuple[RowOrder, ...]
"""The property that new values keep, or one property for each slice of the first dimension:

``constant``: the values are equal in every draw and stay unchanged.
``ascending``, ``descending``: the values are sorted along the last dimension.
``distinct``: no value occurs twice, as in a permutation.
``distinct_rows``: no value occurs twice along the last dimension.
``columns``: the values lie within the drawn range of their column, as in a list of coordinates.
``free``: the values lie within the drawn range.
"""
_ALONG_ROWS = ("ascending", "descending", "distinct_rows")

_INPUTS = POLICY.inputs
_SIGNED = {dtype.itemsize: dtype for dtype in (torch.int8, torch.int16, torch.int32, torch.int64)}
"""Signed dtypes by size in bytes. These dtypes replace unsigned dtypes, which PyTorch cannot index on every device."""


def is_discrete(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` contains integers or booleans."""
    return not tensor.is_floating_point() and not tensor.is_complex()


def order_of(first: torch.Tensor, second: torch.Tensor) -> Order:
    """Return the property that two draws of one input share. The judge assumes that the model needs this property.

    Few rows or few columns may have different meanings: for example, only the targets of a list of edges are sorted,
    and each coordinate has a range of its own.
    """
    order = _row_order(first, second)
    if order in ("constant", "ascending", "descending") or first.dtype == torch.bool or first.dim() < 2:
        return order
    if first.shape[0] <= _INPUTS.separate_rows and first.shape[-1] >= _INPUTS.least_sorted:
        return tuple(_row_order(*pair) for pair in zip(first, second, strict=True))
    return "columns" if order == "free" and _has_few_columns(first) else order


def _has_few_columns(tensor: torch.Tensor) -> bool:
    """Return whether each column may have a range of its own."""
    return bool(tensor.dim() > 1 and tensor.shape[-1] <= _INPUTS.separate_rows)


def _row_order(first: torch.Tensor, second: torch.Tensor) -> RowOrder:
    if torch.equal(first, second):
        return "constant"
    draws = (first, second)
    if first.dtype == torch.bool or first.numel() < 2:
        return "free"
    if first.shape[-1] > 1:
        if all(bool((draw[..., 1:] >= draw[..., :-1]).all()) for draw in draws):
            return "ascending"
        if all(bool((draw[..., 1:] <= draw[..., :-1]).all()) for draw in draws):
            return "descending"
    if all(draw.unique().numel() == draw.numel() for draw in draws):
        return "distinct"
    if first.shape[-1] > 1 and not any(bool((draw.sort(-1).values.diff() == 0).any()) for draw in draws):
        return "distinct_rows"
    return "free"


def mirrored(drawn: torch.Tensor, order: Order) -> torch.Tensor:
    """Return ``low + high - x`` within the drawn range, or ``not x`` for booleans."""
    if order == "constant" or drawn.numel() == 0:
        return drawn
    if isinstance(order, tuple):
        return torch.stack([mirrored(*row) for row in zip(drawn, order, strict=True)])
    if drawn.dtype == torch.bool:
        return ~drawn
    if order in _ALONG_ROWS and _has_few_columns(drawn):
        return drawn
    if order == "columns":
        rows = drawn.reshape(-1, drawn.shape[-1])
        return rows.amin(0) + rows.amax(0) - drawn
    made = drawn.min() + drawn.max() - drawn
    return made.flip(-1) if order in ("ascending", "descending") else made


def shuffle_into(
    target: torch.Tensor, own: torch.Tensor, other: torch.Tensor, order: Order, draw: random.Random
) -> None:
    """Fill ``target`` with values from two draws, in an arrangement that occurs in neither draw.

    All three tensors are contiguous and have the same shape. Values that are sorted, or distinct in each row, stay in
    their row. Distinct values change places. All other values keep their place, because places may have ranges of their
    own: the function takes a whole block from the other draw, which costs no more than loading the draws. The function
    then exchanges random elements, so that a kernel cannot derive sums over the block from partial sums of the draws.
    """
    if isinstance(order, tuple):
        for row in zip(target, own, other, order, strict=True):
            shuffle_into(*row, draw)
        return
    count = own.numel()
    if order == "constant" or count < 2:
        target.copy_(own if order == "constant" or draw.random() < 0.5 else other)
        return
    if order in _ALONG_ROWS:
        generator = torch.Generator(own.device).manual_seed(draw.getrandbits(48))
        if order == "distinct_rows":
            target.copy_(_distinct_in_rows(own, other, generator))
            return
        chosen = torch.randint(2, own.shape, generator=generator, device=own.device, dtype=torch.bool)
        target.copy_(torch.where(chosen, own, other).sort(dim=-1, descending=order == "descending").values)
        return
    flat, mine, theirs = target.view(-1), own.view(-1), other.view(-1)
    if count <= _INPUTS.few_integers:
        if order == "distinct":
            flat.copy_(mine[torch.tensor(draw.sample(range(count), count), device=own.device)])
            return
        chosen = torch.tensor([draw.random() < 0.5 for _ in range(count)], device=own.device)
        flat.copy_(torch.where(chosen, mine, theirs))
        return
    if order == "distinct":
        cut = draw.randrange(1, count)
        flat[:cut].copy_(mine[count - cut :])
        flat[cut:].copy_(mine[: count - cut])
        words, places = flat.view(_SIGNED[flat.element_size()]), _places(count, draw).to(flat.device)
        words[places] = words[places.roll(draw.randrange(1, len(places)))]
        return
    start, end = sorted(draw.sample(range(count + 1), 2))
    flat.copy_(mine)
    flat[start:end].copy_(theirs[start:end])
    words, own_words, other_words = (one.view(_SIGNED[one.element_size()]) for one in (flat, mine, theirs))
    places = _places(count, draw).to(flat.device)
    words[places] = torch.where((places >= start) & (places < end), own_words[places], other_words[places])


def _distinct_in_rows(own: torch.Tensor, other: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return random values of both draws, distinct along the last dimension and in random order. Short rows stay whole,
    because each column may have a range of its own.
    """
    if _has_few_columns(own):
        shape = (*own.shape[:-1], 1)
        chosen = torch.randint(2, shape, generator=generator, device=own.device, dtype=torch.bool)
        return torch.where(chosen, own, other)
    values = torch.cat([own, other], -1).sort(-1).values
    keys = torch.rand(values.shape, generator=generator, device=values.device)
    keys[..., 1:].masked_fill_(values.diff() == 0, -1.0)  # Repeated values come last.
    return values.gather(-1, keys.argsort(-1, descending=True)[..., : own.shape[-1]])


def _places(count: int, draw: random.Random) -> torch.Tensor:
    """Return a random position in each of many ranges of equal length."""
    stretches = min(max(2, count // _INPUTS.exchanged_one_in), _INPUTS.most_exchanged)
    length = count // stretches
    generator = torch.Generator().manual_seed(draw.getrandbits(48))
    places = torch.randint(length, (stretches,), generator=generator) + torch.arange(stretches) * length
    return places + draw.randrange(count - stretches * length + 1)
