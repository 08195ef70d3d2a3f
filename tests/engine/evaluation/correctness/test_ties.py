"""Indices of equal values: another index is correct if rounding made the values equal or the order is undefined."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from engine.evaluation.correctness.comparison import Tolerances
from engine.evaluation.correctness.fp64_reference import ExactOutputs, compare_in_double
from engine.evaluation.correctness.ties import choices_of
from engine.evaluation.judge_policy import POLICY

Model = Callable[[torch.Tensor], Sequence[torch.Tensor]]


def passes(model: Model, kernel: Model, x: torch.Tensor) -> bool:
    eager = [one.clone() for one in model(x)]
    exact = ExactOutputs(*choices_of(lambda: model(x), lambda: model(x.double())), POLICY.correctness)
    return compare_in_double(list(kernel(x)), eager, lambda: exact, Tolerances(1e-2, 1e-2)).problem is None


def last_first(x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the last of the largest values."""
    values, indices = x.flip(-1).sort(descending=True, stable=True)
    return values[..., :count], (x.shape[-1] - 1 - indices)[..., :count]


@pytest.fixture
def saturated() -> torch.Tensor:
    torch.manual_seed(0)
    return 12 * torch.randn(20, 1000)


@pytest.fixture
def quantised() -> torch.Tensor:
    torch.manual_seed(0)
    return (20 * torch.randn(20, 1000)).round() / 20


def test_places_of_values_that_rounding_makes_equal(saturated: torch.Tensor) -> None:
    def model(x: torch.Tensor) -> Sequence[torch.Tensor]:
        return tuple(torch.topk(torch.sigmoid(x), 5))

    def without_sigmoid(x: torch.Tensor) -> Sequence[torch.Tensor]:
        values, indices = torch.topk(x, 5)
        return values.sigmoid(), indices

    assert not torch.equal(model(saturated)[1], without_sigmoid(saturated)[1])
    assert passes(model, without_sigmoid, saturated)
    for change in (lambda i: (i + 1) % 1000, torch.zeros_like, lambda i: i[:, :1].expand_as(i), lambda i: i - 1000):
        assert not passes(model, lambda x, change=change: (model(x)[0], change(without_sigmoid(x)[1])), saturated)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_the_largest_of_computed_values(saturated: torch.Tensor, dim: int | None) -> None:
    assert passes(lambda x: [x.sigmoid().argmax(dim)], lambda x: [x.argmax(dim)], saturated)
    assert not passes(lambda x: [x.sigmoid().argmax(dim)], lambda x: [x.argmin(dim)], saturated)


def test_of_equal_values_that_are_given_topk_names_any_and_argmax_the_first(quantised: torch.Tensor) -> None:
    assert passes(lambda x: tuple(torch.topk(x, 9)), lambda x: last_first(x, 9), quantised)
    assert passes(lambda x: tuple(x.sort(descending=True)), lambda x: last_first(x, 1000), quantised)
    stable: Model = lambda x: tuple(x.sort(stable=True, descending=True))  # noqa: E731
    assert not passes(stable, lambda x: last_first(x, 1000), quantised)
    few = quantised.round()
    assert not passes(lambda x: tuple(x.max(1)), lambda x: [one[:, 0] for one in last_first(x, 1)], few)


@pytest.mark.parametrize(
    "choose", [lambda x: x.median(1), lambda x: x.nanmedian(1), lambda x: x.kthvalue(400, 1), lambda x: x.mode(1)]
)
def test_median_kthvalue_and_mode_name_any_of_equal_values(choose: Model, quantised: torch.Tensor) -> None:
    few = quantised.round()

    def first(x: torch.Tensor) -> Sequence[torch.Tensor]:
        values = choose(x)[0]
        return values, (x == values[:, None]).int().argmax(1)

    def last(x: torch.Tensor) -> Sequence[torch.Tensor]:
        values, indices = first(x.flip(1))
        return values, 999 - indices

    assert not torch.equal(first(few)[1], last(few)[1])
    assert passes(choose, first, few) and passes(choose, last, few)
    assert not passes(choose, lambda x: (first(x)[0], (first(x)[1] + 1) % 1000), few)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_indices_may_have_another_integer_dtype(saturated: torch.Tensor, dtype: torch.dtype) -> None:
    def model(x: torch.Tensor) -> Sequence[torch.Tensor]:
        return [torch.topk(torch.sigmoid(x), 5)[1].to(dtype)]

    def without_sigmoid(x: torch.Tensor) -> Sequence[torch.Tensor]:
        return [torch.topk(x, 5)[1].to(dtype)]

    few = saturated[:, :200]
    assert not torch.equal(model(few)[0], without_sigmoid(few)[0])
    assert passes(model, without_sigmoid, few)
    assert not passes(model, lambda x: [(without_sigmoid(x)[0] + 1) % 200], few)


def test_a_median_without_indices_is_taken_exactly(quantised: torch.Tensor) -> None:
    def model(x: torch.Tensor) -> Sequence[torch.Tensor]:
        return [x.round().long().median(), x.round().long().max()]

    assert passes(model, model, quantised)
    assert not passes(model, lambda x: [one + 1 for one in model(x)], quantised)


def test_a_kernel_that_rounds_less_may_route_to_other_experts() -> None:
    torch.manual_seed(0)
    experts = torch.randn(64, 32)

    def route(x: torch.Tensor) -> Sequence[torch.Tensor]:
        weights, chosen = torch.topk(torch.softmax(x @ experts.to(x.dtype), -1), 2)
        return weights / weights.sum(-1, keepdim=True), chosen

    def in_fp32(x: torch.Tensor) -> Sequence[torch.Tensor]:
        weights, chosen = route(x.float())
        return weights.bfloat16(), chosen

    experts = experts.bfloat16()
    x = torch.randn(4096, 64, dtype=torch.bfloat16)
    assert not torch.equal(route(x)[1], in_fp32(x)[1])
    assert passes(route, in_fp32, x)
    assert not passes(route, lambda x: [one.roll(1, 0) for one in in_fp32(x)], x)


def test_other_integers_are_taken_exactly(quantised: torch.Tensor) -> None:
    assert not passes(lambda x: [x.topk(3)[1] + 1], lambda x: [last_first(x, 3)[1] + 1], quantised)
    assert not passes(lambda x: [(x * 20).long()], lambda x: [(x * 20).long() + 1], quantised)
