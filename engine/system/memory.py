"""Read and format the total and free memory of a device or of this machine, and control this process's heap."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

from msgspec import Struct

_TOUCHED_AT_ONCE = 32 << 20
"""Bytes to touch per foreign call. With fewer bytes, the thread would be too slow, because it waits for the GIL after
each call.
"""
_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


class Memory(Struct, frozen=True):
    """Free and total memory in bytes. Free memory excludes the memory that any process occupies."""

    free_bytes: int
    total_bytes: int


def host_memory(meminfo: Path = _MEMINFO, group: Path = _GROUP) -> Memory:
    """Return this machine's memory, or that of this process's control group if the group has a limit. Free and total
    memory are 0 if unreadable.

    The page cache counts as free, because the system reclaims it on demand. proc(5) and the Linux documentation of
    cgroup v2 define the formats of ``meminfo`` and ``group``.
    """
    free = total = 0
    with contextlib.suppress(OSError, ValueError):
        figures = _figures(meminfo, ":")
        free, total = 1024 * figures.get("MemAvailable", 0), 1024 * figures.get("MemTotal", 0)
    with contextlib.suppress(OSError, ValueError):
        if (limit := (group / "memory.max").read_text().strip()) != "max":
            files = _figures(group / "memory.stat", "").get("inactive_file", 0)
            held = int((group / "memory.current").read_text()) - files
            free, total = min(free, max(0, int(limit) - held)), min(total, int(limit))
    return Memory(free, total)


def _figures(file: Path, after_name: str) -> dict[str, int]:
    """Parse the lines ``NAME[:] NUMBER [unit]`` of a file."""
    fields = (line.split() for line in file.read_text().splitlines())
    return {words[0].removesuffix(after_name): int(words[1]) for words in fields if len(words) > 1}


def bytes_in_words(count: float) -> str:
    """Format a byte count in decimal units with up to three significant digits: ``96 TB``, ``1.5 GB``."""
    value, units = float(count), ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")
    for unit in units[:-1]:
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} {units[-1]}"


class Mallopt(IntEnum):
    """Parameters of glibc's memory allocator, for mallopt(3)."""

    TRIM_THRESHOLD = -1
    TOP_PAD = -2
    MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Let glibc reuse blocks of any size instead of returning them to the system after each call.

    PyTorch allocates its outputs in each call. Page faults in these allocations would make every kernel look better,
    because kernels write into existing buffers.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(Mallopt.MMAP_MAX, 0)
        libc.mallopt(Mallopt.TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(Mallopt.TOP_PAD, 256 << 20)


def give_back_freed_memory() -> None:
    """Return freed memory to the system."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


@contextlib.contextmanager
def touched_heap(nbytes: int) -> Iterator[None]:
    """In a thread, touch up to ``nbytes`` of the heap while the block runs.

    Call :func:`keep_freed_memory` first. After the block, large allocations use this memory without page faults.
    """
    libc, ends = ctypes.CDLL(None), threading.Event()
    libc.malloc.restype = ctypes.c_void_p
    start = libc.malloc(ctypes.c_size_t(nbytes))
    if start is None or not hasattr(libc, "mallopt"):  # Without mallopt, freed memory does not stay in the heap.
        nbytes = 0

    def touch() -> None:
        for offset in range(0, nbytes, _TOUCHED_AT_ONCE):
            if ends.is_set():
                return
            size = min(_TOUCHED_AT_ONCE, nbytes - offset)
            libc.memset(ctypes.c_void_p(start + offset), 0, ctypes.c_size_t(size))

    thread = threading.Thread(target=touch, name="touch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        libc.free(ctypes.c_void_p(start))
