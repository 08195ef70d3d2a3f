"""Inject a few elements so large that each visibly changes the output.

A mean over millions of elements is close to the mean of a sample. On uniform inputs, a kernel that skips elements would
therefore stay within tolerance. The judge runs the reference to find the magnitude that reveals a skipped element.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence

import torch

from engine.evaluation.correctness.comparison import CHUNK, Tolerances, all_finite, root_mean_square
from engine.evaluation.correctness.conditioning import Run, result_of
from engine.evaluation.judge_policy import CorrectnessPolicy


def inject_outliers(
    tensor: torch.Tensor, size: float, draw: random.Random, policy: CorrectnessPolicy, count: int | None = None
) -> None:
    """Raise random elements of the contiguous ``tensor`` to magnitudes of at least ``size``, with unchanged signs."""
    flat = tensor.view(-1)
    places = draw.sample(range(flat.numel()), min(count or draw.choice(policy.outlier_counts), flat.numel()))
    start = draw.random()
    steps = [(number + start) / len(places) for number in range(len(places))]
    magnitudes = torch.tensor([size * (1 + policy.outlier_spread * step) for step in steps], dtype=flat.dtype)
    index = torch.tensor(places, device=flat.device)
    flat[index] = torch.copysign(magnitudes.to(flat.device), flat[index])


def sizes(
    run: Run,
    is_accurate: Callable[[list[torch.Tensor]], bool],
    inputs: Sequence[torch.Tensor],
    tolerances: Tolerances,
    policy: CorrectnessPolicy,
) -> list[float]:
    """Return, for each input, the smallest magnitude at which a few outliers clearly change the outputs.

    If ``is_accurate`` finds eager inaccurate at this magnitude, the result is a smaller magnitude. The magnitude is 0
    if the outputs do not depend on the input, overflow or are inaccurate. The magnitude is also 0 if the model raises
    or the search takes too long.
    """
    until, right = time.thread_time() + policy.outlier_s, run(list(inputs))

    def size_of(place: int) -> float:
        mine = inputs[place]
        if not mine.is_floating_point() or mine.numel() < 2:
            return 0.0

        def with_outliers(size: float) -> list[torch.Tensor]:
            one = mine.clone()
            inject_outliers(one, policy.outlier_larger * size, random.Random(0), policy, policy.outlier_tried)
            return [*inputs[:place], one, *inputs[place + 1 :]]

        usual, most = root_mean_square(mine), torch.finfo(mine.dtype).max / 4
        levels = [size * usual for size in policy.outlier_sizes if 0.0 < size * usual < most]
        changed = [_changed(run(with_outliers(size)), right, tolerances, policy.outlier_felt) for size in levels]
        enough = next((at for at, count in enumerate(changed) if 2 * count >= max(changed) > 0), -1)
        felt = [size for size, count in zip(levels[: enough + 1], changed, strict=False) if count > 0]
        return next((size for size in reversed(felt) if is_accurate(with_outliers(size))), 0.0)

    def size_in_time(place: int) -> float:
        return (result_of(lambda: size_of(place)) or 0.0) if time.thread_time() < until else 0.0

    return [size_in_time(place) for place in range(len(inputs))]


def _changed(
    outputs: Sequence[torch.Tensor], right: Sequence[torch.Tensor], tolerances: Tolerances, felt: float
) -> int:
    """Return the number of elements that differ clearly, or -1 if a finite element became non-finite."""
    count = 0
    for out, want in zip(outputs, right, strict=True):
        if not want.is_floating_point():
            count += int(torch.count_nonzero(out != want))
            continue
        usual = root_mean_square(want)
        if not math.isfinite(usual):
            usual = root_mean_square(torch.where(torch.isfinite(want), want, 0.0))
        allowed, chunk = min(felt * tolerances.of(want.dtype), 0.5), CHUNK[want.device.type]
        for part, goal in zip(out.reshape(-1).split(chunk), want.reshape(-1).split(chunk), strict=True):
            off, size = (one.float().abs_() for one in (part - goal, goal.clone()))
            if not all_finite(goal):
                off, size = (one.where(torch.isfinite(goal), 0.0) for one in (off, size))
            if len(off) and not math.isfinite(float(off.max())):
                return -1
            count += int(torch.count_nonzero(off > size.add_(usual).mul_(allowed)))
    return count
