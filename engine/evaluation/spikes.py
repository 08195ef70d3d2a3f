"""A few elements so large that the result depends on each of them.

A mean over millions of elements is nearly that of a sample of them, and so are the statistics of a row: whoever leaves
elements out is within the tolerance on inputs that are all alike. It is about inputs and not about operators: how large
is large enough is found by asking the reference, and whether that is too large by asking it in fp64: where its own
rounding grows with them, who rounds less would be found wrong.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence

import torch

from engine.evaluation.checks import Tolerances, compare, root_mean_square

_COUNTS = (1, 1, 1, 2, 7)
"""How many: of one, a sample that is scaled up holds no right share; of seven, who leaves out little misses one."""
_TRIED = 8
_LEAST, _STEP = 16.0, 2.0
"""Sizes in units of the root mean square, from the first on in such steps to the number of elements."""
_FELT = 0.15
"""An output has changed that is off by so much of its own size and that of all; the tolerance is far less."""
_SAMPLE_ABOVE, _SAMPLE_STRIDE = 1 << 20, 61
_FEW = 4
_SPREAD = 0.5
"""Magnitudes are so much larger at most, no two alike: which of two equal ones comes first, no model says."""
_ROUNDED = 0.25
"""With them, the reference is off from fp64 by this share of the tolerance at most, or by no more than without them."""
_DRAWS = ((_TRIED, 1.0), (_TRIED, 1.25), (1, 1.25))
"""How many, and how much larger, in the draws on which a size must do: timed calls have other inputs and places."""
_MOST_S = 2.0
"""Of processor time: other programs must not take the large elements from a judgement."""

Run = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""Outputs of the model for inputs, which it may not change."""


def raise_some(tensor: torch.Tensor, size: float, draw: random.Random, count: int | None = None) -> None:
    """Give some elements of ``tensor``, contiguous, magnitudes from ``size`` on, at random places; signs stay."""
    flat = tensor.view(-1)
    places = draw.sample(range(flat.numel()), min(count or draw.choice(_COUNTS), flat.numel()))
    start = draw.random()
    magnitudes = [size * (1.0 + _SPREAD * (number + start) / len(places)) for number in range(len(places))]
    index = torch.tensor(places, device=flat.device)
    flat[index] = torch.copysign(torch.tensor(magnitudes, dtype=flat.dtype, device=flat.device), flat[index])


def sizes(run: Run, run_in_double: Run, inputs: Sequence[torch.Tensor], tolerances: Tolerances) -> list[float]:
    """For each input the least magnitude at which a few elements change most of what they can change of the outputs, or
    a lesser one at which the outputs are those in fp64.

    0 where there is none: nothing depends on it, results overflow or are far from those in fp64, the model raises or
    does not run in fp64, or it takes too long to find out.
    """
    until = time.thread_time() + _MOST_S
    try:
        right = run(list(inputs))
        least = [_ROUNDED * tolerances.of(out.dtype) if out.is_floating_point() else 0.0 for out in right]
        most = [max(pair) for pair in zip(least, errors(right, run_in_double(list(inputs))), strict=True)]

        def is_exact(given: list[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
            found = errors(outputs, run_in_double(given))
            return all(error <= bound for error, bound in zip(found, most, strict=True))

        return [_size(run, is_exact, inputs, place, right, until) for place in range(len(inputs))]
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
        return [0.0] * len(inputs)


def _size(
    run: Run,
    is_exact: Callable[[list[torch.Tensor], Sequence[torch.Tensor]], bool],
    inputs: Sequence[torch.Tensor],
    place: int,
    right: Sequence[torch.Tensor],
    until: float,
) -> float:
    mine = inputs[place]
    if not mine.is_floating_point() or mine.numel() < 2:
        return 0.0
    usual = root_mean_square(mine)
    most = min(usual * mine.numel(), torch.finfo(mine.dtype).max / 4)
    levels = [_LEAST * usual]
    while 0.0 < levels[-1] < most:
        levels.append(levels[-1] * _STEP)

    def spiked(level: int, seed: int, count: int = _TRIED, factor: float = 1.0) -> list[torch.Tensor]:
        one = mine.clone()
        raise_some(one, factor * levels[level], random.Random(seed), count)
        return [*inputs[:place], one, *inputs[place + 1 :]]

    def changed(level: int) -> int:
        return _changed(run(spiked(level, 0)), right, whole=False)

    low, high = 0, len(levels) - 1
    while (reached := changed(high)) < 0 and high and time.thread_time() < until:
        high -= 1
    if reached > 0 and _FEW * changed(0) >= reached:  # not more with size, but perhaps here and there with luck
        high = low
    while reached > 0 and low < high and time.thread_time() < until:
        middle = (low + high) // 2
        if changed(middle) > reached // 2:
            high = middle
        else:
            low = middle + 1
    if reached == 0:  # each of them changes single elements at most, which no sample shows
        high = low
    for level in range(high, -1, -1):
        for seed, (count, factor) in enumerate(_DRAWS, 1):
            given = spiked(level, seed, count, factor)
            outputs = run(given)
            felt = _changed(outputs, right, whole=True)
            if (felt == 0 and count == _TRIED) or time.thread_time() >= until:
                return 0.0
            if felt < 0 or not is_exact(given, outputs):
                break
        else:
            return levels[level]
    return 0.0


def errors(outputs: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> list[float]:
    """Of each output the largest error, as it is compared with the tolerance; of integers the share that differs."""
    return [_error(out, want) for out, want in zip(outputs, exact, strict=True)]


def _error(out: torch.Tensor, want: torch.Tensor) -> float:
    if not out.is_floating_point():
        return int(torch.count_nonzero(out != want)) / max(int(out.numel()), 1)
    wide = torch.promote_types(out.dtype, torch.float32)
    return compare([out.to(wide).contiguous()], [want.to(wide).contiguous()], math.inf).max_rel_error


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
