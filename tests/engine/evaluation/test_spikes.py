"""A few large elements: as large as it takes for outputs to depend on each; none where a model has no use for them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from engine.evaluation.checks import compare
from engine.evaluation.spikes import raise_some, sizes

Model = Callable[..., torch.Tensor]


def spiked(x: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    changed = x.clone()
    raise_some(changed, size, random.Random(seed))
    return changed


def test_signs_stay_and_few_change() -> None:
    x = torch.randn(40, 50)
    for seed in range(20):
        changed = spiked(x, 300.0, seed)
        places = (changed != x).nonzero()
        assert 1 <= len(places) <= 7
        assert torch.equal(changed.sign(), x.sign())
        assert changed.abs().max() == 300.0


@pytest.mark.parametrize("share", [2, 3, 8, 64])
@pytest.mark.parametrize("scaled", [True, False])
def test_the_mean_of_a_sample_is_found_off(share: int, scaled: bool) -> None:
    torch.manual_seed(share)
    x = torch.rand(1 << 20)
    (size,) = sizes(lambda inputs: [inputs[0].mean()], [x])
    found = 0
    for seed in range(20):
        changed = spiked(x, size, seed)
        sample = changed[seed % share :: share] if scaled else changed.clone().index_fill_(0, torch.arange(share), 0.0)
        found += compare([sample.mean()], [changed.mean()], 1e-2).problem is not None
    assert found >= 14 if scaled else found == 0


def test_statistics_of_half_a_row_are_found_off() -> None:
    x = torch.randn(3, 1 << 18)
    (size,) = sizes(lambda inputs: [torch.nn.functional.layer_norm(inputs[0], [1 << 18])], [x])

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
    (size,) = sizes(lambda inputs: [inputs[0].sum()], [x])
    for seed in range(10):
        changed = spiked(x, size, seed)
        assert compare([sum_of(changed)], [changed.sum()], 1e-2).problem is None


def test_no_larger_than_it_takes() -> None:
    """What works on elements alone gets them little larger than the inputs are when multiplied by 100."""
    x, y = torch.randn(500, 400), torch.rand(500, 400)
    for model in (lambda inputs: [inputs[0].sin()], lambda inputs: [torch.relu(inputs[0]) * inputs[1]]):
        assert all(size <= 64 for size in sizes(model, [x, y]))
    assert sizes(lambda inputs: [inputs[0].exp().sum(1)], [x])[0] < 80  # exp(89) is infinite


def test_models_that_have_no_use_for_them_get_none() -> None:
    x, whole = torch.randn(300, 300), torch.arange(300)
    assert sizes(lambda inputs: [inputs[1] * 2], [x, x])[0] == 0.0
    assert sizes(lambda inputs: [inputs[0] + inputs[1]], [whole, whole]) == [0.0, 0.0]
    assert sizes(lambda inputs: [inputs[0].log()], [x])[0] > 0.0  # infinities stay where they are
    positive = x @ x.t() + 300 * torch.eye(300)
    assert sizes(lambda inputs: [torch.linalg.cholesky(inputs[0])], [positive]) == [0.0]
    half = torch.rand(1 << 18).half()
    (size,) = sizes(lambda inputs: [inputs[0].sum(dtype=torch.float32)], [half])
    assert 0.0 < size < 65504 / 2
