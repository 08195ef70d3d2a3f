"""Planted outliers are large enough for outputs to depend on each. Models that ignore outliers get none."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch

from engine.evaluation.correctness.comparison import Tolerances, compare
from engine.evaluation.correctness.conditioning import Conditioning, Run
from engine.evaluation.inputs.outliers import inject_outliers, sizes
from engine.evaluation.judge_policy import POLICY

Model = Callable[..., torch.Tensor]
TOLERANCES = Tolerances(1e-2, 1e-2)


@pytest.fixture(autouse=True)
def _the_same_inputs_each_time() -> None:
    torch.manual_seed(1)


def sizes_of(run: Run, inputs: list[torch.Tensor]) -> list[float]:
    def exactly(given: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        return run([one.double() if one.is_floating_point() else one for one in given])

    policy = POLICY.correctness
    is_accurate = partial(Conditioning(run, exactly, inputs, policy).is_as_on_drawn, tolerances=TOLERANCES)
    return sizes(run, is_accurate, inputs, TOLERANCES, policy)


def spiked(x: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    changed = x.clone()
    inject_outliers(changed, size, random.Random(seed), POLICY.correctness)
    return changed


def test_signs_stay_and_few_change() -> None:
    x = torch.randn(40, 50)
    for seed in range(20):
        changed = spiked(x, 300.0, seed)
        places = (changed != x).nonzero()
        assert 1 <= len(places) <= 7
        assert torch.equal(changed.sign(), x.sign())
        large = changed[changed != x].abs()
        assert large.min() >= 300.0 and large.max() <= 450.0
        assert len(large.half().unique()) == len(large)  # the model does not define the order of equal values


@pytest.mark.parametrize("share", [2, 3, 8, 64])
@pytest.mark.parametrize("scaled", [True, False])
def test_the_mean_of_a_sample_is_found_off(share: int, scaled: bool) -> None:
    torch.manual_seed(share)
    x = torch.rand(1 << 20)
    (size,) = sizes_of(lambda inputs: [inputs[0].mean()], [x])
    found = 0
    for seed in range(20):
        changed = spiked(x, size, seed)
        sample = changed[seed % share :: share] if scaled else changed.clone().index_fill_(0, torch.arange(share), 0.0)
        found += compare([sample.mean()], [changed.mean()], 1e-2).problem is not None
    assert found >= 14 if scaled else found == 0


def test_statistics_of_half_a_row_are_found_off() -> None:
    x = torch.randn(3, 1 << 18)
    (size,) = sizes_of(lambda inputs: [torch.nn.functional.layer_norm(inputs[0], [1 << 18])], [x])

    def by_half(x: torch.Tensor) -> torch.Tensor:
        half = x[:, : 1 << 17]
        return (x - half.mean(1, keepdim=True)) / half.std(1, keepdim=True)

    right = torch.nn.functional.layer_norm(x, [1 << 18])
    assert compare([by_half(x)], [right], 1e-2).problem is None
    changed = [spiked(x, size, seed) for seed in range(10)]
    found = [compare([by_half(one)], [torch.nn.functional.layer_norm(one, [1 << 18])], 1e-2).problem for one in changed]
    assert sum(one is not None for one in found) >= 8


@pytest.mark.parametrize(
    "sum_of",
    [
        lambda x: torch.cumsum(x, 0)[-1],
        lambda x: x.view(1024, -1).sum(1).sum(),
        lambda x: x.double().sum().float(),
        lambda x: x.half().float().sum(),
    ],
    ids=["one by one", "blocks", "fp64", "from fp16"],
)
def test_sums_in_any_order_stay_right(sum_of: Model) -> None:
    x = torch.rand(1 << 19)
    (size,) = sizes_of(lambda inputs: [inputs[0].sum()], [x])
    for seed in range(10):
        changed = spiked(x, size, seed)
        assert compare([sum_of(changed)], [changed.sum()], 1e-2).problem is None


def test_no_larger_than_it_takes() -> None:
    """Elementwise models get outliers little larger than the inputs multiplied by 100."""
    x, y = torch.randn(500, 400), torch.rand(500, 400)
    for model in (lambda inputs: [inputs[0].sin()], lambda inputs: [torch.relu(inputs[0]) * inputs[1]]):
        assert all(size <= 64 for size in sizes_of(model, [x, y]))
    assert sizes_of(lambda inputs: [inputs[0].exp().sum(1)], [x])[0] < 80  # exp(89) is infinite


def test_models_that_have_no_use_for_them_get_none() -> None:
    x, whole = torch.randn(300, 300), torch.arange(300)
    assert sizes_of(lambda inputs: [inputs[1] * 2], [x, x])[0] == 0.0
    assert sizes_of(lambda inputs: [inputs[0] + inputs[1]], [whole, whole]) == [0.0, 0.0]
    assert sizes_of(lambda inputs: [inputs[0].log()], [x])[0] > 0.0  # infinities keep their places
    positive = x @ x.t() + 300 * torch.eye(300)
    assert sizes_of(lambda inputs: [torch.linalg.cholesky(inputs[0])], [positive]) == [0.0]
    half = torch.rand(1 << 18).half()
    (size,) = sizes_of(lambda inputs: [inputs[0].sum(dtype=torch.float32)], [half])
    assert 0.0 < size < 65504 / 2


def test_none_where_the_reference_itself_rounds_them_away() -> None:
    x = 1.02 * torch.randn(512, 512)
    assert sizes_of(lambda inputs: [-torch.log(1 - torch.sigmoid(inputs[0]))], [x]) == [0.0]
    assert sizes_of(lambda inputs: [torch.nn.functional.softplus(inputs[0])], [x])[0] > 0.0


def test_lesser_ones_where_squares_overflow() -> None:
    """In fp16, the whole row then becomes 0, which is finite but wrong."""
    half = (torch.randn(8, 1 << 14) * 0.503).half()

    def normalised(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)

    (size,) = sizes_of(lambda inputs: [normalised(inputs[0])], [half])
    assert 0.0 < size < 255
    for seed in range(20):
        changed = spiked(half, size, seed)
        assert compare([normalised(changed.float()).half()], [normalised(changed)], 1e-2).problem is None


def test_places_of_the_largest_are_those_in_fp64() -> None:
    x = torch.randn(50000)
    (size,) = sizes_of(lambda inputs: list(torch.topk(inputs[0], 16)), [x])
    assert size > 0.0
    for seed in range(40):
        changed = spiked(x, size, seed)
        stable = torch.sort(changed, descending=True, stable=True).indices[:16]
        assert torch.equal(torch.topk(changed, 16).indices, stable)


def test_a_model_that_does_not_run_in_fp64_gets_them_too() -> None:
    x = torch.rand(1 << 16)
    assert sizes_of(lambda inputs: [inputs[0].dot(torch.ones(1 << 16))], [x])[0] > 0.0
    assert sizes_of(lambda inputs: [(1 - inputs[0].sigmoid()).log() * torch.ones(1 << 16)], [x]) == [0.0]
