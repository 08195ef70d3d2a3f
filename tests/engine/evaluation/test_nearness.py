"""Who rounds less than eager is right; who rounds more, or leaves something out, is held to eager's outputs."""

from __future__ import annotations

import pytest
import torch

from engine.evaluation.checks import Tolerances
from engine.evaluation.nearness import Doubled, compare_in_double

TOLERANCES = Tolerances(1e-2, 1e-2)


@pytest.fixture
def attention() -> tuple[torch.Tensor, torch.Tensor]:
    """Eager's output in bf16, every step of which is rounded, and that in fp64."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 200, 64, dtype=torch.bfloat16) for _ in range(3))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(1, 2) / 8, -1) @ v

    return attend(q, k, v), attend(q.double(), k.double(), v.double())


def passes(out: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None) -> bool:
    right = None if exact is None else Doubled([exact], [None])
    return compare_in_double([out], [eager], lambda: right, TOLERANCES) is not None


def test_who_rounds_once_is_right(attention: tuple[torch.Tensor, torch.Tensor]) -> None:
    eager, exact = attention
    found = compare_in_double([exact.bfloat16()], [eager], lambda: Doubled([exact], [None]), TOLERANCES)
    assert found is not None and found.max_rel_error < 0.01
    assert not passes(exact.bfloat16(), eager, None)


@pytest.mark.parametrize("factor", [0.0, 0.98, 1.02, -1.0])
def test_who_is_off_by_more_than_eager_is_not(attention: tuple[torch.Tensor, torch.Tensor], factor: float) -> None:
    eager, exact = attention
    assert not passes((factor * exact).bfloat16(), eager, exact)


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan"), float("inf")])
def test_nor_is_who_misses_a_single_element(attention: tuple[torch.Tensor, torch.Tensor], value: float) -> None:
    eager, exact = attention
    out = exact.bfloat16()
    out[3, 199, 63] = value
    assert not passes(out, eager, exact)


def test_where_eager_is_noise_a_kernel_is_still_to_be_near() -> None:
    exact = torch.randn(1000, dtype=torch.float64)
    eager = (exact + torch.randn(1000, dtype=torch.float64)).half()
    assert passes(exact.half(), eager, exact)
    assert not passes(torch.zeros(1000, dtype=torch.half), eager, exact)


def test_where_eager_overflows_it_may_be_finite_and_near() -> None:
    exact = torch.full((100,), 50_000.0, dtype=torch.float64)
    exact[7] = 1e6
    eager = exact.half()
    eager[3] = float("inf")
    assert passes(exact.half(), eager, exact)
    for value in (float("nan"), 40_000.0, -float("inf")):
        out = exact.half()
        out[3] = value
        assert not passes(out, eager, exact)
    out = exact.half()
    out[7] = 60_000.0
    assert not passes(out, eager, exact)


def test_integers_are_not_rounded() -> None:
    eager = torch.tensor([1, 2])
    assert not passes(torch.tensor([1, 3]), eager, torch.tensor([1, 3]))
