"""Timed calls get mixtures of two draws that equal seeds repeat exactly."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from engine.evaluation.build.compilers import build, default_cache
from engine.evaluation.correctness import native
from engine.evaluation.inputs.mixing import blend_into, mix_into
from engine.evaluation.judge_policy import POLICY, CorrectnessPolicy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("count", "period", "moved"), [(10_000, 1021, 0), (10_000, 1021, 9_999), (4096, 1024, 2000)])
def test_the_compiled_helper_mixes_rotates_and_repeats(dtype: torch.dtype, count: int, period: int, moved: int) -> None:
    mine, theirs, noise = (torch.randn(size, dtype=dtype) for size in (count, count, period))
    target = torch.empty_like(mine)
    assert native.mix(target, mine, theirs, noise, (0.6, 0.8), moved)
    repeated = noise.repeat(-(-count // period))[:count]
    torch.testing.assert_close(target, 0.6 * mine + 0.8 * theirs.roll(moved) + repeated)


def test_a_damaged_helper_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library, _ = asyncio.run(build(native._SOURCE.read_text(), "cpp", "", "", default_cache(), "errors_float32"))
    assert library is not None
    library.write_bytes(b"cut off")
    assert native._library.__wrapped__() is None


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_changing_weights_are_blended_and_the_others_copied(dtype: torch.dtype) -> None:
    own, other = ([torch.randn(size).to(dtype) for size in (40, 1, 0, 7)] + [torch.arange(5)] for _ in range(2))
    changes = [True, True, True, False, True]

    def blended(seed: int, policy: CorrectnessPolicy = POLICY.correctness) -> list[torch.Tensor]:
        targets = [torch.empty_like(one) for one in own]
        blend_into(targets, own, other, changes, random.Random(seed), policy)
        return targets

    together = blended(1)
    assert torch.equal(together[3], own[3]) and torch.equal(together[4], own[4]), "integers cannot be blended"
    assert not torch.equal(together[0], blended(2)[0])
    target, mine, theirs = (one[0].double() for one in (together, own, other))
    rests = [target - target.new_tensor(_fitted(target, mine, theirs.roll(moved))) for moved in range(40)]
    assert min(float(rest.abs().max()) for rest in rests) < (1e-5 if dtype == torch.float32 else 1e-2)

    one_by_one = replace(POLICY.correctness, blended_together=-1)
    for one, alone in zip(together, blended(1, one_by_one), strict=True):
        torch.testing.assert_close(one, alone, rtol=1e-3, atol=1e-3)


def _fitted(target: torch.Tensor, mine: torch.Tensor, theirs: torch.Tensor) -> list[float]:
    """Return the convex mixture of two draws that is nearest to ``target``."""
    apart = mine - theirs
    share = float((target - theirs) @ apart / (apart @ apart))
    return list((share * mine + (1.0 - share) * theirs).tolist())
