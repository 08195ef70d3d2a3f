"""Comparison of outputs: what passes, what fails, and with which message."""

from __future__ import annotations

import math

import pytest
import torch

from engine.evaluation.correctness import comparison
from engine.evaluation.sandbox.arena import Arena
from engine.problem.spec import TensorSpec

SIZES = [7, 1000, 3_000_001]


@pytest.mark.parametrize("size", SIZES)
def test_rounding_passes_and_errors_are_measured(size: int) -> None:
    want = torch.randn(size)
    found = comparison.compare([want * (1 + 1e-6)], [want], 1e-2)
    assert found.problem is None
    assert 0 < found.max_rel_error < 1e-5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_zeros_pass_at_no_scale(size: int, scale: float) -> None:
    want = torch.randn(size) * scale
    assert comparison.compare([torch.zeros(size)], [want], 1e-2).problem is not None


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_fails(size: int, value: float) -> None:
    want = torch.randn(size)
    out = want.clone()
    out[size // 2] = value
    found = comparison.compare([out], [want], 1e-2)
    assert found.problem is not None and "non-finite elements: 1" in found.problem


def test_infinities_must_stand_where_the_reference_has_them() -> None:
    want = torch.tensor([1.0, math.inf, math.nan, 2.0])
    assert comparison.compare([want.clone()], [want], 1e-2).problem is None
    assert comparison.compare([torch.tensor([1.0, math.inf, 5.0, 2.0])], [want], 1e-2).problem is not None
    assert comparison.compare([torch.tensor([1.0, -math.inf, math.nan, 2.0])], [want], 1e-2).problem is not None


def test_the_words_name_place_and_values() -> None:
    want = torch.arange(1.0, 13.0).reshape(3, 4)
    out = want.clone()
    out[1, 2] = 70.0
    problem = comparison.compare([out], [want], 1e-2).problem
    assert problem is not None and "[1, 2]: 70, expected 7" in problem


@pytest.mark.parametrize(
    ("wrong", "of", "share"),
    [
        (3, 10_000, "0.03%"),
        (1, 3_000_000, "0.00003%"),
        (9_997, 10_000, "99.97%"),
        (10_000, 10_000, "100.0%"),
        (25, 10_000, "0.2%"),
    ],
)
def test_a_share_of_wrong_elements_reads_neither_as_none_nor_as_all(wrong: int, of: int, share: str) -> None:
    want = torch.ones(of)
    out = want.clone()
    out[:wrong] = 2.0
    problem = comparison.compare([out], [want], 1e-2).problem
    assert problem is not None and problem.startswith(f"out: {share} of elements differ by more than 0.01; ")


def test_an_output_that_was_mended_since_it_was_found_to_be_off_gets_words_too() -> None:
    """Written by a thread of the kernel, which is too late for the message."""
    mended = torch.arange(12.0)
    assert (
        comparison._describe(mended, mended.clone(), 1e-2, 1.0).problem
        == "another process changed the output during the comparison"
    )


def test_integers_must_be_equal() -> None:
    want = torch.arange(10)
    assert comparison.compare([want.clone()], [want], 1e-2).problem is None
    found = comparison.compare([want + 1], [want], 1e-2)
    assert found.problem == "out: 10 of 10 elements differ; the first is at [0]: 1, expected 0"
    assert found.max_abs_error == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_one_integer_of_many_that_differs_is_found(dtype: torch.dtype) -> None:
    want = torch.randint(0, 100, (1000, 33), dtype=dtype)
    out = want.clone()
    out[700, 5] += 1
    problem = comparison.compare([out], [want], 1e-2, ["found"]).problem
    assert problem is not None and problem.startswith("found: 1 of 33,000 elements differ; the first is at [700, 5]:")


def test_a_boolean_is_zero_or_one() -> None:
    want = torch.rand(50) > 0.5
    assert comparison.compare([want.clone()], [want], 1e-2).problem is None
    assert comparison.compare([~want], [want], 1e-2).problem is not None
    odd = torch.full((50,), 0xFE, dtype=torch.uint8).view(torch.bool)
    problem = comparison.compare([odd], [torch.ones(50, dtype=torch.bool)], 1e-2).problem
    assert problem is not None and "byte 254, expected True" in problem


def test_each_output_has_the_tolerance_of_its_own_dtype() -> None:
    want = torch.randn(1000)
    tolerances = comparison.Tolerances(1e-4, 1e-2)
    off = [(want * 1.003).half(), want * 1.003]
    assert comparison.compare(off[:1], [want.half()], tolerances).problem is None
    problem = comparison.compare(off, [want.half(), want], tolerances).problem
    assert problem is not None and problem.startswith("out1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool])
def test_many_small_outputs_are_compared_like_single_ones(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    expected = [(torch.randn(size) * 10.0**scale).to(dtype) for scale, size in ((-2, 9), (0, 70), (2, 300), (0, 0))]
    outputs = [want * (1 + 1e-6) if want.is_floating_point() else want.clone() for want in expected]
    alone = [comparison.compare([out], [want], 1e-4) for out, want in zip(outputs, expected, strict=True)]
    together = comparison.compare(outputs, expected, 1e-4)
    assert together.problem is None
    assert together.max_abs_error == pytest.approx(max(one.max_abs_error for one in alone), rel=1e-3)
    assert together.max_rel_error == pytest.approx(max(one.max_rel_error for one in alone), rel=1e-3)

    for index in range(3):
        wrong = [out.clone() for out in outputs]
        wrong[index][5] = not wrong[index][5] if dtype == torch.bool else wrong[index][5] * 2 + 1
        reason = comparison.compare(wrong, expected, 1e-4).problem
        assert reason is not None and reason.startswith(f"out{index}: ") and "[5]" in reason
    if dtype.is_floating_point:
        outputs[1][3] = expected[1][3] = torch.inf
        found = comparison.compare(outputs, expected, 1e-4)
        assert found.problem is None and not found.finite


@pytest.mark.parametrize("scale", [1e-60, 1e200])
def test_small_outputs_of_any_scale_are_not_replaced_by_zeros(scale: float) -> None:
    expected = [torch.randn(8, dtype=torch.float64) * scale for _ in range(2)]
    assert comparison.compare([torch.zeros_like(want) for want in expected], expected, 1e-4).problem is not None


def test_an_empty_output_is_right() -> None:
    assert comparison.compare([torch.empty(0, 3)], [torch.empty(0, 3)], 1e-2).problem is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_are_compared_too(dtype: torch.dtype) -> None:
    want = torch.randn(1000, dtype=torch.float32).to(dtype)
    assert comparison.compare([want.clone()], [want], 1e-2).problem is None
    assert comparison.compare([want * 2], [want], 1e-2).problem is not None
    broken = want.clone()
    broken[7] = math.nan
    assert comparison.compare([broken], [want], 1e-2).problem is not None
    with_infinity = want.clone()
    with_infinity[7] = math.inf
    assert comparison.compare([with_infinity.clone()], [with_infinity], 1e-2).problem is None
    found = comparison.compare([want + want.abs().max() * 1e-3], [want], 1e-2)
    assert found.problem is None and 0 < found.max_abs_error < 0.05


@pytest.mark.parametrize(("dtype", "shape"), [("bool", (5,)), ("float16", ()), ("uint8", (3,)), ("int64", (2,))])
def test_the_last_bytes_of_an_output_are_poisoned_too(dtype: str, shape: tuple[int, ...]) -> None:
    arena = Arena([TensorSpec("out", "output", dtype, shape)], "cpu", slots=1)
    try:
        slot = arena.slots[0]
        out, count = slot.outputs[0], max(slot.outputs[0].numel(), 1)
        for which in (0, 1):
            out.zero_()
            slot.poison(which)
            assert slot.unwritten(which, [torch.zeros_like(out)]) == (
                f"the kernel left {count} of {count} elements of out unwritten; the first has index 0"
            )
            out.fill_(1)
            assert slot.unwritten(which, [torch.zeros_like(out)]) is None
    finally:
        arena.close()


def test_the_checksum_notices_one_changed_element() -> None:
    tensor = torch.randn(1001)
    before = comparison.checksum([tensor])
    tensor[1000] += 1
    assert comparison.checksum([tensor]) != before


def test_guards_and_poison_are_seen_to_the_element() -> None:
    specs = [TensorSpec("x", "input", "float32", (10, 3)), TensorSpec("out", "output", "float32", (7,))]
    arena = Arena(specs, "cpu")
    try:
        slot = arena.slots[1]
        slot.poison(0)
        assert torch.isnan(slot.outputs[0]).all()
        slot.outputs[0][:5] = 1.0
        assert (
            slot.unwritten(0, [torch.zeros(7)])
            == "the kernel left 2 of 7 elements of out unwritten; the first has index 5"
        )
        slot.outputs[0][5:] = 1.0
        assert slot.unwritten(0, [torch.zeros(7)]) is None
        assert slot.damaged_redzone() is None
        beyond = torch.as_strided(slot.outputs[0], (1,), (1,), slot.outputs[0].storage_offset() + 7)
        beyond.fill_(3.0)
        assert slot.damaged_redzone() == "the kernel wrote past the end of out"
        assert slot.damaged_redzone() is None  # restored for the next kernel
    finally:
        arena.close()


@pytest.mark.parametrize(("size", "dtype"), [(3e30, torch.float32), (1e200, torch.float64), (3e30, torch.bfloat16)])
def test_values_whose_squares_are_infinite_are_compared_as_others(size: float, dtype: torch.dtype) -> None:
    want = (torch.randn(500).double() * size).to(dtype)
    assert comparison.compare([want.clone()], [want], 1e-2).problem is None
    assert comparison.compare([torch.zeros_like(want)], [want], 1e-2).problem is not None
    assert comparison.compare([want * 1.5], [want], 1e-2).problem is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_sum_that_overflows_is_not_taken_for_an_infinity(dtype: torch.dtype) -> None:
    large = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
    assert comparison.all_finite(large)
    for odd in (math.inf, -math.inf, math.nan):
        assert not comparison.all_finite(torch.cat([large, torch.tensor([odd], dtype=dtype)]))
        assert not comparison.all_finite(torch.tensor([0.0, odd, -odd], dtype=dtype))
