"""Outputs that differ from eager's are correct if they are as accurate; kernels that round more are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import conv2d

from engine.evaluation.correctness.comparison import CHUNK, KERNELBENCH, Tolerances
from engine.evaluation.correctness.fp64_reference import ExactOutputs, compare_in_double
from engine.evaluation.judge_policy import POLICY

TOLERANCES = Tolerances(1e-2, 1e-2)
Pair = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def attention() -> Pair:
    """Return eager's output in bf16, with every step rounded, and the output in fp64."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 200, 64, dtype=torch.bfloat16) for _ in range(3))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(1, 2) / 8, -1) @ v

    return attend(q, k, v), attend(q.double(), k.double(), v.double())


def passes(
    out: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None, tolerances: Tolerances = TOLERANCES
) -> bool:
    right = None if exact is None else ExactOutputs([exact], [None], False, POLICY.correctness)
    return compare_in_double([out], [eager], lambda: right, tolerances).problem is None


def test_a_kernel_that_rounds_once_is_right(attention: Pair) -> None:
    eager, exact = attention
    right = ExactOutputs([exact], [None], False, POLICY.correctness)
    found = compare_in_double([exact.bfloat16()], [eager], lambda: right, TOLERANCES)
    assert found.problem is None and found.max_rel_error < 0.01
    assert not passes(exact.bfloat16(), eager, None)


@pytest.mark.parametrize("factor", [0.0, 0.98, 1.02, -1.0])
def test_a_kernel_that_is_off_by_more_than_eager_is_wrong(attention: Pair, factor: float) -> None:
    eager, exact = attention
    assert not passes((factor * exact).bfloat16(), eager, exact)


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan"), float("inf")])
def test_a_kernel_that_misses_a_single_element_is_wrong(attention: Pair, value: float) -> None:
    eager, exact = attention
    out = exact.bfloat16()
    out[3, 199, 63] = value
    assert not passes(out, eager, exact)


@pytest.mark.parametrize("residue", [0.0, 1e-17])
@pytest.mark.parametrize(("value", "right"), [(0.0, True), (3e-8, True), (1e-3, False), (1000.0, False)])
def test_where_fp64_is_zero_a_kernel_must_be_as_near_as_eager(value: float, right: bool, residue: float) -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    eager, exact = x * 3 - x - x - x, torch.full((64, 64), residue, dtype=torch.float64)
    assert eager.count_nonzero() > 1000
    assert passes(torch.where(eager != 0, value, 0.0), eager, exact) == right


def test_where_eager_is_noise_a_kernel_must_still_be_near() -> None:
    exact = torch.randn(1000, dtype=torch.float64)
    eager = (exact + torch.randn(1000, dtype=torch.float64)).half()
    assert passes(exact.half(), eager, exact)
    assert not passes(torch.zeros(1000, dtype=torch.half), eager, exact)


def test_where_eager_overflows_a_kernel_may_be_finite_and_near() -> None:
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


def test_integers_equal_those_of_an_accurate_run() -> None:
    eager, exact = torch.tensor([1, 2, 7]), torch.tensor([1, 3, 7])
    assert passes(torch.tensor([1, 3, 7]), eager, exact)
    assert not passes(torch.tensor([1, 4, 7]), eager, exact)
    assert not passes(torch.tensor([1, 3, 8]), eager, exact)


def keeping(bits: int, nearest: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """Round fp32 to a number of mantissa bits, to nearest or toward zero."""
    dropped = 1 << (23 - bits)
    half = dropped // 2 if nearest else 0
    return lambda x: ((x.contiguous().view(torch.int32) + half) & -dropped).view(torch.float32)


TF32, CUT_TO_TF32, BF16 = keeping(10, True), keeping(10, False), keeping(7, True)


@pytest.mark.parametrize("draw", [torch.randn, torch.rand])
@pytest.mark.parametrize("eagers", [TF32, CUT_TO_TF32], ids=["rounds", "cuts off"])
def test_a_convolution_that_eager_computes_in_tf32(
    draw: Callable[..., torch.Tensor], eagers: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """On GPUs, eager's error is ten times the tolerance. fp32 and TF32 are then correct, and bf16 is wrong."""
    x, weight = draw(8, 64, 20, 20), (torch.rand(32, 64, 3, 3) - 0.5) / 12
    eager, exact = conv2d(eagers(x), eagers(weight)), conv2d(x.double(), weight.double())
    in_another_order = conv2d(x.flip(1), weight.flip(1))
    assert passes(in_another_order, eager, exact, KERNELBENCH)
    for rounded in (TF32, CUT_TO_TF32, lambda x: x.half().float()):
        assert passes(conv2d(rounded(x.flip(1)), rounded(weight.flip(1))), eager, exact, KERNELBENCH)
    assert not passes(conv2d(BF16(x), BF16(weight)), eager, exact, KERNELBENCH)
    assert not passes(in_another_order * 1.001, in_another_order, exact, KERNELBENCH)


def test_an_element_may_be_off_by_a_multiple_of_eagers_own_error_there() -> None:
    exact = torch.randn(100_000, dtype=torch.float64)
    eager = exact.float()
    eager[7] += 0.5
    for place, is_right in ((7, True), (8, False)):
        out = exact.float()
        out[place] -= 0.6
        assert passes(out, eager, exact, KERNELBENCH) is is_right


def test_elements_within_the_tolerance_of_eager_are_right_beside_others() -> None:
    """Cases where only eager has lost its digits, and where eager and kernel have lost the same."""
    exact = torch.randn(100_000, dtype=torch.float64)
    eager = exact.float()
    eager[:10] += 0.5
    out = eager.clone()
    out[:5] = exact[:5].float()
    assert passes(out, eager, exact, KERNELBENCH)


def test_a_few_ulps_are_harmless_where_another_element_is_off() -> None:
    """The kernel sums in another order. Its mean error is many times eager's, but still tiny."""
    exact = torch.randn(100_000, dtype=torch.float64)
    eager = exact.float()
    eager[7] += 1e-3
    out = (exact * (1 + 4e-6 * torch.rand(100_000))).float()
    assert passes(out, eager, exact, KERNELBENCH)


@pytest.mark.parametrize("special", [0.0, math.nan, math.inf, 1e6])
@pytest.mark.parametrize("off", [0.0, 0.3])
@pytest.mark.parametrize("nearby", [False, True])
def test_parts_do_not_change_the_decision(
    monkeypatch: pytest.MonkeyPatch, special: float, off: float, nearby: bool
) -> None:
    torch.manual_seed(0)
    exact = torch.randn(1000, dtype=torch.float64)
    exact[13] = special  # 1e6 is infinite in fp16.
    eager, beside = ((exact * (1 + 0.02 * torch.randn_like(exact))).half() for _ in range(2))
    out = exact.half()
    out[-1] += off
    right = ExactOutputs([exact], [None], False, POLICY.correctness, lambda: [beside] if nearby else None)

    def errors() -> tuple[float, float] | None:
        found = compare_in_double([out], [eager], lambda: right, TOLERANCES)
        return None if found.problem is not None else (found.max_abs_error, found.max_rel_error)

    whole = errors()
    assert (whole is None) == (off > 0)
    monkeypatch.setitem(CHUNK, "cpu", 7)
    assert errors() == whole


def test_the_comparison_names_the_output_that_is_wrong(attention: Pair) -> None:
    eager, exact = attention
    right = ExactOutputs([exact, exact], [None, None], False, POLICY.correctness)
    for wrong in range(2):
        outputs = [exact.bfloat16(), exact.bfloat16()]
        outputs[wrong] = outputs[wrong] * 1.5
        found = compare_in_double(outputs, [eager, eager], lambda: right, TOLERANCES)
        assert found.problem is not None and found.problem.startswith(f"out{wrong}:")
