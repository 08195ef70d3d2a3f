"""Mix two draws of a problem's inputs or weights into values that no earlier call has seen."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import torch

from engine.evaluation.correctness import native
from engine.evaluation.inputs.structure import Structure
from engine.evaluation.judge_policy import CorrectnessPolicy

T = TypeVar("T")
Mixing = Literal["rotated", "convex", "fresh", "none"]
"""How to combine two draws of floating-point inputs into a third:

``rotated``: ``cos(a) * own + sin(a) * other``, which keeps a zero mean and the variance.
``convex``: values between the two draws, for models that accept only bounded values.
``fresh``: a new draw, for inputs or models that do not permit mixing.
``none``: no mixture.
"""


class _Blend(NamedTuple):
    """The operation ``into = shares[0] * own + shares[1] * other``, with ``other`` rotated by ``moved`` elements. All
    tensors are flat.
    """

    into: torch.Tensor
    own: torch.Tensor
    other: torch.Tensor
    shares: tuple[float, float]
    moved: int


def mix_into(
    targets: Sequence[torch.Tensor],
    own: Sequence[torch.Tensor],
    other: Sequence[torch.Tensor],
    structures: Sequence[Structure | None],
    mixing: Mixing,
    draw: random.Random,
    policy: CorrectnessPolicy,
) -> None:
    """Fill ``targets`` from two draws with values that no earlier call has seen.

    The same state of ``draw`` always produces the same values. The function shifts the second draw by a secret
    distance, adds random numbers, and flips some signs. Therefore a kernel cannot combine earlier outputs into the new
    output, even for a linear model.

    Structured inputs keep their structure. Discrete inputs keep the values of ``own``.
    """
    for target, mine, theirs, structure in zip(targets, own, other, structures, strict=True):
        if not mine.is_floating_point() or mixing == "none" or (structure is not None and structure.discrete):
            target.copy_(mine)
        else:
            first, second = _shares(draw, policy, convex=mixing == "convex")
            if structure is not None:
                mine, theirs = structure.finite(mine), structure.finite(theirs)
            _blend(target, mine, theirs, (first, second), draw, policy if mixing == "rotated" else None)
            if structure is not None:
                target.copy_(structure.restore(target))


def blend_into(
    targets: Sequence[torch.Tensor],
    own: Sequence[torch.Tensor],
    other: Sequence[torch.Tensor],
    changes: Sequence[bool],
    draw: random.Random,
    policy: CorrectnessPolicy,
) -> None:
    """Fill ``targets`` with a convex mixture of two draws where ``changes`` is true, otherwise with ``own``.

    A network has hundreds of weights, so the function mixes all small weights together.
    """
    copied: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    blended: list[_Blend] = []
    for target, mine, theirs, change in zip(targets, own, other, changes, strict=True):
        if not change or not mine.is_floating_point():
            copied[0].append(target)
            copied[1].append(mine)
            continue
        moved, shares = draw.randrange(max(target.numel(), 1)), _shares(draw, policy, convex=True)
        one = _Blend(target.view(-1), mine.reshape(-1), theirs.reshape(-1), shares, moved)
        if target.numel() > policy.blended_together:
            _blend_in_passes(*one)
        else:
            blended.append(one)
    copy_into(*copied)
    for same in _by_dtype(blended, lambda one: one.into.dtype):
        _blend_together(same)


def copy_into(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy all tensors, with a few GPU launches per dtype."""
    for same in _by_dtype(list(zip(targets, sources, strict=True)), lambda pair: pair[0].dtype):
        torch._foreach_copy_([target for target, _ in same], [source for _, source in same])


def _by_dtype(all_of: Sequence[T], dtype_of: Callable[[T], torch.dtype]) -> list[list[T]]:
    """Group items by dtype, because PyTorch processes a whole list in one launch only if all tensors share a dtype."""
    groups: dict[torch.dtype, list[T]] = {}
    for one in all_of:
        groups.setdefault(dtype_of(one), []).append(one)
    return list(groups.values())


def _shares(draw: random.Random, policy: CorrectnessPolicy, *, convex: bool) -> tuple[float, float]:
    """Return the share of each draw in a mixture. Both draws contribute."""
    angle = draw.uniform(policy.least_angle, math.pi / 2 - policy.least_angle)
    first, second = math.cos(angle), math.sin(angle)
    return (first / (first + second), second / (first + second)) if convex else (first, second)


def _blend(
    target: torch.Tensor,
    mine: torch.Tensor,
    theirs: torch.Tensor,
    shares: tuple[float, float],
    draw: random.Random,
    noise_policy: CorrectnessPolicy | None,
) -> None:
    """Write ``shares[0] * mine + shares[1] * theirs`` to ``target``. The sum uses ``theirs`` rotated by a random number
    of elements.
    With ``noise_policy``, add a short random sequence, repeated with a random period, and flip a few signs at random
    places.
    """
    into, own, other = target.view(-1), mine.reshape(-1), theirs.reshape(-1)
    count = into.numel()
    moved = draw.randrange(count) if count else 0
    if noise_policy is None or count < 2:
        _blend_in_passes(into, own, other, shares, moved)
        return
    generator = torch.Generator().manual_seed(draw.getrandbits(48))
    period = draw.randrange(min(noise_policy.least_period, count), min(noise_policy.period, count) + 1)
    size = noise_policy.noise * float(own[:: max(1, count // noise_policy.sampled)].float().abs().mean())
    noise = (torch.randn(period, generator=generator) * size).to(into.device, into.dtype)
    if not native.mix(into, own, other, noise, shares, moved):
        _blend_in_passes(into, own, other, shares, moved)
        whole = count // period * period
        into[:whole].view(-1, period).add_(noise)
        into[whole:].add_(noise[: count - whole])
    places = torch.randint(count, (min(noise_policy.turned, count // 8 + 1),), generator=generator).unique()
    places = places.to(into.device)
    into[places] = -into[places]


def _blend_in_passes(
    into: torch.Tensor, own: torch.Tensor, other: torch.Tensor, shares: tuple[float, float], moved: int
) -> None:
    torch.mul(own, shares[0], out=into)
    into[moved:].add_(other[: into.numel() - moved], alpha=shares[1])
    into[:moved].add_(other[into.numel() - moved :], alpha=shares[1])


def _blend_together(blends: Sequence[_Blend]) -> None:
    """Blend several tensors of one dtype at once, each as in ``_blend_in_passes``."""
    firsts, seconds = zip(*(one.shares for one in blends), strict=True)
    torch._foreach_copy_([one.into for one in blends], torch._foreach_mul([one.own for one in blends], firsts))
    added = torch._foreach_mul([one.other for one in blends], seconds)
    parts = []
    for one, theirs in zip(blends, added, strict=True):
        left = one.into.numel() - one.moved
        parts += [(one.into[one.moved :], theirs[:left]), (one.into[: one.moved], theirs[left:])]
    filled = [part for part in parts if part[0].numel()]
    torch._foreach_add_([into for into, _ in filled], [theirs for _, theirs in filled])
