"""Timed calls get mixtures of two draws that equal seeds repeat exactly."""

from __future__ import annotations

import random

import pytest
import torch

from engine.evaluation.correctness import native
from engine.evaluation.inputs.mixing import mix_into
from engine.evaluation.judge_policy import POLICY


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("count", "period", "moved"), [(10_000, 1021, 0), (10_000, 1021, 9_999), (4096, 1024, 2000)])
def test_the_compiled_helper_mixes_rotates_and_repeats(dtype: torch.dtype, count: int, period: int, moved: int) -> None:
    mine, theirs, noise = (torch.randn(size, dtype=dtype) for size in (count, count, period))
    target = torch.empty_like(mine)
    assert native.mix(target, mine, theirs, noise, (0.6, 0.8), moved)
    repeated = noise.repeat(-(-count // period))[:count]
    torch.testing.assert_close(target, 0.6 * mine + 0.8 * theirs.roll(moved) + repeated)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equal_seeds_repeat_a_mixture_and_others_do_not(dtype: torch.dtype) -> None:
    own, other = (torch.randn(300, 400).to(dtype) for _ in range(2))

    def mixed(seed: int) -> torch.Tensor:
        target = torch.empty_like(own)
        mix_into([target], [own], [other], [None], "rotated", random.Random(seed), POLICY.correctness)
        return target

    assert torch.equal(mixed(1), mixed(1))
    assert not torch.equal(mixed(1), mixed(2))
    assert float(mixed(1).float().std()) == pytest.approx(1.0, abs=0.05), "a mixture keeps the variance"
