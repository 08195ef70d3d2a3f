"""The facts that the system reports about a process, tested on this process."""

from __future__ import annotations

import ctypes
import mmap
import os

import torch

from engine.evaluation.sandbox.process_facts import Mapping, mappings_of, not_its_own, usage_of
from engine.evaluation.sandbox.shared_memory import shared_memory

SIZE = 1 << 20
WRITTEN = 32 << 20


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
        assert found is not None and "more than once" in found
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


def test_private_memory_counts_once_it_is_mapped_and_shared_memory_once_it_is_written() -> None:
    before = usage_of(os.getpid())
    private = mmap.mmap(-1, WRITTEN, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shared = mmap.mmap(-1, WRITTEN, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    mapped = usage_of(os.getpid())
    for memory in (private, shared):
        memory.write(b"1" * WRITTEN)
    written = usage_of(os.getpid())
    assert before is not None and mapped is not None and written is not None
    assert mapped.private_bytes - before.private_bytes >= WRITTEN
    assert mapped.shared_bytes - before.shared_bytes < WRITTEN / 2
    assert written.shared_bytes - before.shared_bytes >= WRITTEN
    assert written.threads >= 1


def test_a_process_that_is_gone_holds_nothing_that_is_known() -> None:
    assert usage_of(2**22 + 1) is None


def test_a_library_with_the_buffers_inode_number_is_no_second_mapping() -> None:
    buffers = Mapping(0x1000, 0x9000, True, 0, 77, "/memfd:arena (deleted)")
    library = [
        Mapping(0x10000, 0x12000, False, 0, 77, "/lib/a.so"),
        Mapping(0x20000, 0x21000, False, 0, 77, "/lib/a.so"),
    ]
    assert not_its_own([buffers, *library], [(0x2000, 64)], 77) is None
    assert (
        not_its_own([buffers, *library], [(0x10000, 64)], 77) == "forward's result is in memory mapped from /lib/a.so"
    )
    again = Mapping(0x30000, 0x38000, True, 0, 77, buffers.name)
    assert "more than once" in str(not_its_own([buffers, again], [(0x2000, 64)], 77))
