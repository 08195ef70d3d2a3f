"""Mix two draws of a problem's inputs or weights into values that no earlier call has seen."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Literal

import torch

from engine.evaluation.inputs.integers import Order, shuffle_into
from engine.evaluation.inputs.structure import Structure
from engine.evaluation.judge_policy import CorrectnessPolicy

Mixing = Literal["rotated", "convex", "fresh", "none"]
"""How to combine two draws of floating-point inputs into a third:

- ``rotated``: ``cos(a) * own + sin(a) * other``, which keeps a zero mean and the variance
- ``convex``: between the two, for models that accept bounded values only
- ``fresh``: a new draw, for models that accept no mixture
- ``none``: no mixture
"""


def mix_into(
    targets: Sequence[torch.Tensor],
    own: Sequence[torch.Tensor],
    other: Sequence[torch.Tensor],
    orders: Sequence[Order | Structure | None],
    mixing: Mixing,
    draw: random.Random,
    policy: CorrectnessPolicy,
) -> None:
    """Fill ``targets`` from two draws with values that no earlier call has seen.

    Equal states of ``draw`` produce equal values. The function shifts the second draw by a secret distance, adds random
    numbers, and flips some signs. Therefore a kernel cannot combine earlier outputs into the new output, even for a
    linear model.

    Integers and booleans are rearranged (:func:`engine.evaluation.inputs.integers.shuffle_into`). Structured inputs
    keep their structure.
    """
    for target, mine, theirs, order in zip(targets, own, other, orders, strict=True):
        structure = order if isinstance(order, Structure) else None
        if order is not None and not isinstance(order, Structure):
            shuffle_into(target, mine, theirs, order, draw)
        elif not mine.is_floating_point() or mixing == "none" or (structure is not None and structure.discrete):
            target.copy_(mine)
        else:
            angle = draw.uniform(policy.least_angle, math.pi / 2 - policy.least_angle)  # Both draws contribute.
            first, second = math.cos(angle), math.sin(angle)
            if mixing == "convex":
                first, second = first / (first + second), second / (first + second)
            if structure is not None:
                mine, theirs = structure.finite(mine), structure.finite(theirs)
            _blend(target, mine, theirs, first, second, draw)
            if mixing == "rotated":
                _freshen(target, draw, policy)
            if structure is not None:
                target.copy_(structure.restore(target))


def _blend(
    target: torch.Tensor, mine: torch.Tensor, theirs: torch.Tensor, first: float, second: float, draw: random.Random
) -> None:
    """Write ``first * mine + second * theirs``, with ``theirs`` rotated by a random number of elements."""
    torch.mul(mine, first, out=target)
    flat, from_flat = target.view(-1), theirs.reshape(-1)
    moved = draw.randrange(flat.numel()) if flat.numel() else 0
    flat[moved:].add_(from_flat[: flat.numel() - moved], alpha=second)
    flat[:moved].add_(from_flat[flat.numel() - moved :], alpha=second)


def _freshen(target: torch.Tensor, draw: random.Random, policy: CorrectnessPolicy) -> None:
    """Add a short random sequence, repeated with a random period, and flip a few signs at random places."""
    flat = target.view(-1)
    count = flat.numel()
    if count < 2:
        return
    generator = torch.Generator().manual_seed(draw.getrandbits(48))
    period = draw.randrange(min(policy.least_period, count), min(policy.period, count) + 1)
    size = policy.noise * float(flat[:: max(1, count // policy.sampled)].float().abs().mean())
    noise = (torch.randn(period, generator=generator) * size).to(target.device, target.dtype)
    whole = count // period * period
    flat[:whole].view(-1, period).add_(noise)
    flat[whole:].add_(noise[: count - whole])
    places = torch.randint(count, (min(policy.turned, count // 8 + 1),), generator=generator).unique()
    places = places.to(target.device)
    flat[places] = -flat[places]
