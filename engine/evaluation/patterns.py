"""What a wrong output looks like: the name of the trick behind it, where it can be told.

Looked at only after a failure. Names are those of ``docs/judge.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.evaluation import checks

ALMOST = 0.02
"""Two outputs that differ by less than this, relative to their size, are the same answer."""

_FEW, _ROUNDED = 16, 1e-5
"""So few elements, the mean of millions for one, are nearly the same each time: to be one answer they must differ by
rounding alone."""
PROPERTY = "uses a property of the inputs"

Outputs = Sequence[torch.Tensor]


def name_of(
    outputs: Outputs,
    expected: Outputs,
    inputs: Outputs,
    earlier: Sequence[Outputs],
    with_first_weights: Callable[[], Outputs | None],
    passed: bool,
    as_drawn: bool,
) -> str | None:
    """The pattern, or None for a kernel that is merely wrong.

    ``earlier``: right answers of earlier calls. ``with_first_weights``: what the reference gives for these inputs with
    the weights of the first call, None for a model without weights. ``passed``: whether it was right before.
    ``as_drawn``: whether these inputs were as the problem draws them.
    """
    if not all(torch.equal(_finite(out), _finite(want)) for out, want in zip(outputs, expected, strict=True)):
        return "NaN or infinity differs"
    if all(_constant(out) and not _constant(want) for out, want in zip(outputs, expected, strict=True)):
        return "constant output"
    if any(_same([out], [one]) for out in outputs for one in inputs if one.shape == out.shape):
        return "copies its input"
    if any(_same(outputs, answer) for answer in earlier):
        return "replays an earlier output"
    if not passed:
        return None
    stale = with_first_weights()
    if stale is not None and _same(outputs, stale):
        return "caches or ignores weights"
    return "wrong after its first calls" if as_drawn else PROPERTY


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(tensor).reshape(-1)


def _constant(tensor: torch.Tensor) -> bool:
    flat = tensor.reshape(-1)
    return flat.numel() > 1 and bool((flat == flat[0]).all())


def _same(outputs: Outputs, answer: Outputs) -> bool:
    if len(outputs) > len(answer):
        return False
    pairs = list(zip(outputs, answer, strict=False))
    if any(one.numel() != other.numel() or one.dtype != other.dtype for one, other in pairs):
        return False
    tolerance = ALMOST if sum(one.numel() for one, _ in pairs) > _FEW else _ROUNDED
    return checks.compare([one for one, _ in pairs], [other for _, other in pairs], tolerance).problem is None
