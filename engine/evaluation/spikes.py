"""A few elements so large that the result depends on each of them.

A mean over millions of elements is nearly that of a sample of them, and so are the statistics of a row: whoever leaves
elements out is within the tolerance on inputs that are all alike. It is about inputs and not about operators: how large
is large enough is found by asking the reference.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence

import torch

from engine.evaluation.checks import root_mean_square

_COUNTS = (1, 1, 1, 2, 7)
"""How many: of one, a sample that is scaled up holds no right share; of seven, who leaves out little misses one."""
_TRIED = 8
_LEAST, _STEP = 16.0, 2.0
"""Sizes in units of the root mean square, from the first on in such steps to the number of elements."""
_FELT = 0.15
"""An output has changed that is off by so much of its own size and that of all; the tolerance is far less."""
_SAMPLE_ABOVE, _SAMPLE_STRIDE = 1 << 20, 61
_DRAWS, _FEW = 2, 4
_MOST_S = 2.0

Run = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""Outputs of the model for inputs, which it may not change."""


def raise_some(tensor: torch.Tensor, size: float, draw: random.Random, count: int | None = None) -> None:
    """Give some elements of ``tensor``, contiguous, at random places the magnitude ``size``; they keep their signs."""
    flat = tensor.view(-1)
    places = [draw.randrange(flat.numel()) for _ in range(count or draw.choice(_COUNTS))]
    index = torch.tensor(places, device=flat.device)
    flat[index] = torch.copysign(torch.full_like(flat[index], size), flat[index])


def sizes(run: Run, inputs: Sequence[torch.Tensor]) -> list[float]:
    """For each input the least magnitude at which a few elements change most of what they can change of the outputs.

    0 where there is none: nothing depends on it, results overflow, the model raises, or it takes too long to find out.
    """
    until = time.perf_counter() + _MOST_S
    try:
        right = run(list(inputs))
        return [_size(run, inputs, place, right, until) for place in range(len(inputs))]
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return [0.0] * len(inputs)


def _size(run: Run, inputs: Sequence[torch.Tensor], place: int, right: Sequence[torch.Tensor], until: float) -> float:
    mine = inputs[place]
    if not mine.is_floating_point() or mine.numel() < 2:
        return 0.0
    usual = root_mean_square(mine)
    most = min(usual * mine.numel(), torch.finfo(mine.dtype).max / 4)
    levels = [_LEAST * usual]
    while 0.0 < levels[-1] < most:
        levels.append(levels[-1] * _STEP)

    def changed(level: int, seed: int = 0, whole: bool = False) -> int:
        spiked = mine.clone()
        raise_some(spiked, levels[level], random.Random(seed), _TRIED)
        return _changed(run([*inputs[:place], spiked, *inputs[place + 1 :]]), right, whole)

    low, high = 0, len(levels) - 1
    while (reached := changed(high)) < 0 and high and time.perf_counter() < until:
        high -= 1
    if reached > 0 and _FEW * changed(0) >= reached:  # not more with size, but perhaps here and there with luck
        high = low
    while reached > 0 and low < high and time.perf_counter() < until:
        middle = (low + high) // 2
        if changed(middle) > reached // 2:
            high = middle
        else:
            low = middle + 1
    if reached == 0:  # each of them changes single elements at most, which no sample shows
        high = low
    found = [changed(high, seed, whole=True) for seed in range(1, 1 + _DRAWS)]
    return levels[high] if min(found) > 0 and time.perf_counter() < until else 0.0


def _changed(outputs: Sequence[torch.Tensor], right: Sequence[torch.Tensor], whole: bool) -> int:
    """How many elements differ, ``whole`` or in a sample of large outputs; -1 where one is not finite that was."""
    count = 0
    for out, want in zip(outputs, right, strict=True):
        if want.numel() > _SAMPLE_ABOVE and not whole:
            out, want = out.reshape(-1)[::_SAMPLE_STRIDE], want.reshape(-1)[::_SAMPLE_STRIDE]
        if not want.numel():
            continue
        if not want.is_floating_point():
            count += int(torch.count_nonzero(out != want))
            continue
        off, size = (out - want).float().abs_(), want.float().abs()
        if not math.isfinite(float(off.max())):
            finite = torch.isfinite(want)
            if not bool(torch.isfinite(out)[finite].all()):
                return -1
            off, size = off.masked_fill_(~finite, 0.0), size.masked_fill_(~finite, 0.0)
        count += int(torch.count_nonzero(off > size.add_(root_mean_square(size)).mul_(_FELT)))
    return count
