"""What lies behind addresses, read from this very process."""

from __future__ import annotations

import ctypes
import mmap
import os

import torch

from engine.evaluation.mappings import mappings_of, not_its_own
from engine.evaluation.pages import unwritten_bytes
from engine.evaluation.shared_memory import shared_memory

SIZE = 1 << 20


def address_of(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def test_own_memory_and_the_judges_buffers_may_hold_results() -> None:
    descriptor, arena = shared_memory("arena", SIZE)
    inode = os.fstat(descriptor).st_ino
    own = torch.ones(SIZE // 4)
    spans = [(own.data_ptr(), own.nbytes), (address_of(arena), SIZE)]
    assert not_its_own(mappings_of(os.getpid()), spans, inode) is None
    os.close(descriptor)


def test_the_judges_buffers_mapped_again_are_found_wherever_the_results_lie() -> None:
    descriptor, _arena = shared_memory("arena", SIZE)
    inode = os.fstat(descriptor).st_ino
    for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        again = mmap.mmap(descriptor, SIZE, flags)
        found = not_its_own(mappings_of(os.getpid()), [], inode)
        assert found is not None and "more than one place" in found
        again.close()
    assert not_its_own(mappings_of(os.getpid()), [], inode) is None
    os.close(descriptor)


def test_results_in_memory_that_is_mapped_from_elsewhere_are_found() -> None:
    descriptor, kept = shared_memory("of-a-kernel", SIZE)
    anonymous = mmap.mmap(-1, SIZE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    for mapped in (kept, mmap.mmap(descriptor, SIZE, mmap.MAP_PRIVATE), anonymous):
        found = not_its_own(mappings_of(os.getpid()), [(address_of(mapped) + 100, 8)], arena=0)
        assert found is not None and "mapped from" in found
    os.close(descriptor)


def test_pages_that_nobody_has_written_are_counted() -> None:
    fresh = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = address_of(fresh)
    assert unwritten_bytes(os.getpid(), address, SIZE) == SIZE
    fresh[: SIZE // 4] = bytes(SIZE // 4)  # zeros, but written
    assert not any(fresh[SIZE // 2 :])  # read, which writes nothing
    assert unwritten_bytes(os.getpid(), address, SIZE) == SIZE - SIZE // 4
    part = mmap.PAGESIZE // 2
    assert unwritten_bytes(os.getpid(), address + SIZE // 2 + part, 2 * mmap.PAGESIZE) == mmap.PAGESIZE
    assert unwritten_bytes(os.getpid(), address, 0) == 0


def test_what_the_judge_shares_counts_as_written() -> None:
    descriptor, arena = shared_memory("arena", SIZE)
    arena[:SIZE] = bytes(SIZE)
    assert unwritten_bytes(os.getpid(), address_of(arena), SIZE) == 0
    os.close(descriptor)
