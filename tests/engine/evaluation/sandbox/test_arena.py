"""The judge writes marks into and around a kernel's buffers, and detects missing or damaged marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from engine.evaluation.sandbox.arena import Arena, Slot
from engine.problem.spec import DTYPE_BYTES, TensorSpec

Make = Callable[[str, int], Slot]


@pytest.fixture
def slot_of() -> Iterator[Make]:
    """Create a slot with one input and one output of a dtype and size."""
    arenas = []

    def make(dtype: str, count: int) -> Slot:
        specs = (TensorSpec("x", "input", "float32", (3,)), TensorSpec("out", "output", dtype, (count,)))
        arenas.append(Arena(specs, "cpu", 1))
        return arenas[-1].slots[0]

    yield make
    for arena in arenas:
        arena.close()


def zeros(slot: Slot) -> list[torch.Tensor]:
    return [torch.zeros_like(out) for out in slot.outputs]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("dtype", list(DTYPE_BYTES))
def test_an_output_that_nothing_has_written_is_found(slot_of: Make, dtype: str, count: int, which: int) -> None:
    slot = slot_of(dtype, count)
    slot.poison(which)
    said = f"the kernel left {count:,} of {count:,} elements of out unwritten; the first has index 0"
    assert slot.unwritten(which, zeros(slot)) == said
    assert slot.unwritten(1 - which, zeros(slot)) is None
    assert slot.damaged_redzone() is None
    (out,) = slot.outputs
    if out.is_floating_point():
        assert bool(out.isnan().all())
    out.zero_()
    assert slot.unwritten(which, zeros(slot)) is None
    slot.forget()
    assert slot.unwritten(0, zeros(slot)) == said


def test_the_elements_that_are_left_are_counted(slot_of: Make) -> None:
    slot = slot_of("float16", 7)
    slot.poison(1)
    slot.outputs[0][:5] = 1
    assert slot.unwritten(1, zeros(slot)) == "the kernel left 2 of 7 elements of out unwritten; the first has index 5"


def test_wrong_bytes_that_equal_the_poison_by_chance_are_written(slot_of: Make) -> None:
    slot = slot_of("int8", 1000)
    (out,) = slot.outputs
    slot.poison(0)
    poison = int(out[0])
    expected = torch.arange(1000).remainder(256).sub(128).to(torch.int8)
    out.copy_(expected.roll(2))
    assert bool((out == poison).any())
    assert slot.unwritten(0, [expected]) is None
    slot.poison(0)
    out[:10] = expected[:10]
    right = int((expected == poison).sum())
    words = f"the kernel left {990 - right} of 1,000 elements of out unwritten; the first has index 10"
    assert slot.unwritten(0, [expected]) == words


@pytest.mark.parametrize(("at", "place"), [(-1, "before the start of out"), (7, "past the end of out")])
def test_a_byte_beside_a_buffer_is_found_once(slot_of: Make, at: int, place: str) -> None:
    slot = slot_of("uint8", 7)
    (out,) = slot.outputs
    torch.as_strided(out, (1,), (1,), out.storage_offset() + at)[0] = 0
    assert slot.damaged_redzone() == f"the kernel wrote {place}"
    assert slot.damaged_redzone() is None
