"""Comparison of outputs: what passes, what does not, and in which words."""

from __future__ import annotations

import math

import pytest
import torch

from engine.evaluation import checks
from engine.evaluation.arena import Arena
from engine.problem.spec import TensorSpec

SIZES = [7, 1000, 3_000_001]


@pytest.mark.parametrize("size", SIZES)
def test_rounding_passes_and_errors_are_measured(size: int) -> None:
    want = torch.randn(size)
    found = checks.compare([want * (1 + 1e-6)], [want], 1e-2)
    assert found.problem is None
    assert 0 < found.max_rel_error < 1e-5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_zeros_pass_at_no_scale(size: int, scale: float) -> None:
    want = torch.randn(size) * scale
    assert checks.compare([torch.zeros(size)], [want], 1e-2).problem is not None


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_fails(size: int, value: float) -> None:
    want = torch.randn(size)
    out = want.clone()
    out[size // 2] = value
    found = checks.compare([out], [want], 1e-2)
    assert found.problem is not None and "1 are not finite" in found.problem


def test_infinities_must_stand_where_the_reference_has_them() -> None:
    want = torch.tensor([1.0, math.inf, math.nan, 2.0])
    assert checks.compare([want.clone()], [want], 1e-2).problem is None
    assert checks.compare([torch.tensor([1.0, math.inf, 5.0, 2.0])], [want], 1e-2).problem is not None
    assert checks.compare([torch.tensor([1.0, -math.inf, math.nan, 2.0])], [want], 1e-2).problem is not None


def test_the_words_name_place_and_values() -> None:
    want = torch.arange(1.0, 13.0).reshape(3, 4)
    out = want.clone()
    out[1, 2] = 70.0
    problem = checks.compare([out], [want], 1e-2).problem
    assert problem is not None and "[1, 2]: 70, expected 7" in problem


def test_integers_must_be_equal() -> None:
    want = torch.arange(10)
    assert checks.compare([want.clone()], [want], 1e-2).problem is None
    assert checks.compare([want + 1], [want], 1e-2).problem == "out: 10 of 10 elements differ"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_are_compared_too(dtype: torch.dtype) -> None:
    want = torch.randn(1000, dtype=torch.float32).to(dtype)
    assert checks.compare([want.clone()], [want], 1e-2).problem is None
    assert checks.compare([want * 2], [want], 1e-2).problem is not None


def test_the_checksum_notices_one_changed_element() -> None:
    tensor = torch.randn(1001)
    before = checks.checksum([tensor])
    tensor[1000] += 1
    assert checks.checksum([tensor]) != before


def test_guards_and_poison_are_seen_to_the_element() -> None:
    specs = [TensorSpec("x", "input", "float32", (10, 3)), TensorSpec("out", "output", "float32", (7,))]
    arena = Arena(specs, "cpu")
    try:
        slot = arena.slots[1]
        slot.poison(0)
        assert torch.isnan(slot.outputs[0]).all()
        slot.outputs[0][:5] = 1.0
        assert slot.unwritten(0) == "2 of 7 elements of out were never written, the first at index 5"
        slot.outputs[0][5:] = 1.0
        assert slot.unwritten(0) is None
        assert slot.damaged_guard() is None
        beyond = torch.as_strided(slot.outputs[0], (1,), (1,), slot.outputs[0].storage_offset() + 7)
        beyond.fill_(3.0)
        assert slot.damaged_guard() == "wrote past the end of out"
        assert slot.damaged_guard() is None  # mended for the next kernel
    finally:
        arena.close()
