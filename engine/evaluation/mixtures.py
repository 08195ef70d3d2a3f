"""Values that no call has seen, made of two draws of a problem's inputs or weights."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Sequence
from typing import Literal

import torch

from engine.problem.integers import Order, shuffle_into
from engine.problem.structure import Structure

Mixing = Literal["rotated", "convex", "fresh", "none"]
"""How two draws of floating-point inputs make a third. ``rotated``: ``cos(a) * own + sin(a) * other's``, which keeps
mean zero and variance. ``convex``: between the two, for models that accept only values within bounds. ``fresh``: not at
all, it is drawn anew, for those that accept no mixture."""

_PERIODS = (1021, 8191)
_NOISE = 0.1
_SHARES = 1 << 20
_TURNED = 64
"""Signs changed in each floating-point input, so that a kernel that samples its inputs knows little of them."""


def mix_into(
    targets: Sequence[torch.Tensor],
    own: Sequence[torch.Tensor],
    other: Sequence[torch.Tensor],
    orders: Sequence[Order | Structure | None],
    mixing: Mixing,
    seed: int,
) -> None:
    """Fill ``targets`` with values that no earlier call has seen, from two draws; the same for the same ``seed``.

    No earlier outputs can be added up to that of a mixture, not even for a linear model: the second draw is moved by a
    secret distance, and values are added and signs changed that were in no draw. Integers and booleans change places
    (:func:`engine.problem.integers.shuffle_into`), and what has a structure keeps it.
    """
    draw = random.Random(seed)
    for target, mine, theirs, order in zip(targets, own, other, orders, strict=True):
        structure = order if isinstance(order, Structure) else None
        if order is not None and not isinstance(order, Structure):
            shuffle_into(target, mine, theirs, order, draw)
        elif not mine.is_floating_point() or mixing == "none" or (structure is not None and structure.discrete):
            target.copy_(mine)
        else:
            angle = draw.uniform(0.15, math.pi / 2 - 0.15)  # never one of them alone
            first, second = math.cos(angle), math.sin(angle)
            if mixing == "convex":
                first, second = first / (first + second), second / (first + second)
            if structure is not None:
                mine, theirs = structure.finite(mine), structure.finite(theirs)
            _blend(target, mine, theirs, first, second, draw)
            if mixing == "rotated":
                _freshen(target, draw)
            if structure is not None:
                target.copy_(structure.restore(target))


def _blend(
    target: torch.Tensor, mine: torch.Tensor, theirs: torch.Tensor, first: float, second: float, draw: random.Random
) -> None:
    """``first * mine + second * theirs``, the latter moved along by a random number of elements."""
    torch.mul(mine, first, out=target)
    flat, from_flat = target.view(-1), theirs.reshape(-1)
    moved = draw.randrange(flat.numel()) if flat.numel() else 0
    flat[moved:].add_(from_flat[: flat.numel() - moved], alpha=second)
    flat[:moved].add_(from_flat[flat.numel() - moved :], alpha=second)


def _freshen(target: torch.Tensor, draw: random.Random) -> None:
    """Add short random numbers, repeated with a random period, and change a few signs at random places."""
    flat = target.view(-1)
    count = flat.numel()
    if count < 2:
        return
    generator = torch.Generator().manual_seed(draw.getrandbits(48))
    period = draw.randrange(min(_PERIODS[0], count), min(_PERIODS[1], count) + 1)
    size = _NOISE * float(flat[:: max(1, count // 4096)].float().abs().mean())
    noise = (torch.randn(period, generator=generator) * size).to(target.device, target.dtype)
    whole = count // period * period
    flat[:whole].view(-1, period).add_(noise)
    flat[whole:].add_(noise[: count - whole])
    places = torch.randint(count, (min(_TURNED, count // 8 + 1),), generator=generator).unique().to(target.device)
    flat[places] = -flat[places]


class Shares:
    """Secret random shares for mixing weights, each element with its own: one share for a whole tensor would let a
    kernel interpolate between the products of two sets that it knows.

    Drawn once, since fresh ones would cost more than the mixing; a call starts at a place of its own. Half of the
    shares are 0 or 1, for the more they spread, the less their mean tells.
    """

    def __init__(self, device: torch.device | str) -> None:
        generator = torch.Generator().manual_seed(secrets.randbits(48))
        drawn = torch.rand(_SHARES, generator=generator).mul_(2).sub_(0.5).clamp_(0, 1)
        self._drawn = {torch.float32: drawn.to(device)}

    def mix_into(self, target: torch.Tensor, own: torch.Tensor, other: torch.Tensor, draw: random.Random) -> None:
        """Fill ``target``, contiguous, with elements between those of two others of its shape; repeated in tensors of
        more than half a million elements, after a random number of them.
        """
        if target.dtype not in self._drawn:
            self._drawn[target.dtype] = self._drawn[torch.float32].to(target.dtype)
        start, period = draw.randrange(_SHARES // 2), draw.randrange(_SHARES // 4, _SHARES // 2)
        shares = self._drawn[target.dtype][start : start + period]
        to, mine, theirs = target.view(-1), own.reshape(-1), other.reshape(-1)
        count = to.numel()
        whole = count // period * period
        if whole:
            rows = (-1, period)
            torch.lerp(mine[:whole].view(rows), theirs[:whole].view(rows), shares, out=to[:whole].view(rows))
        torch.lerp(mine[whole:], theirs[whole:], shares[: count - whole], out=to[whole:])
