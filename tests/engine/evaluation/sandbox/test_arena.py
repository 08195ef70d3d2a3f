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


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("dtype", list(DTYPE_BYTES))
def test_an_output_that_nothing_has_written_is_found(slot_of: Make, dtype: str, count: int, which: int) -> None:
    slot = slot_of(dtype, count)
    slot.poison(which)
    said = f"the kernel left {count:,} of {count:,} elements of out unwritten; the first has index 0"
    assert slot.unwritten(which) == said
    assert slot.unwritten(1 - which) is None
    assert slot.damaged_redzone() is None
    (out,) = slot.outputs
    if out.is_floating_point():
        assert bool(out.isnan().all())
    out.zero_()
    assert slot.unwritten(which) is None
    slot.forget()
    assert slot.unwritten(0) == said


def test_the_elements_that_are_left_are_counted(slot_of: Make) -> None:
    slot = slot_of("float16", 7)
    slot.poison(1)
    slot.outputs[0][:5] = 1
    assert slot.unwritten(1) == "the kernel left 2 of 7 elements of out unwritten; the first has index 5"


@pytest.mark.parametrize(("at", "place"), [(-1, "before the start of out"), (7, "past the end of out")])
def test_a_byte_beside_a_buffer_is_found_once(slot_of: Make, at: int, place: str) -> None:
    slot = slot_of("uint8", 7)
    (out,) = slot.outputs
    torch.as_strided(out, (1,), (1,), out.storage_offset() + at)[0] = 0
    assert slot.damaged_redzone() == f"the kernel wrote {place}"
    assert slot.damaged_redzone() is None
