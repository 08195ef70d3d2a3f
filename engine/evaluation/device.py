"""The judge's device: torch set up for it, its clock, its cache flush, how much memory may be spent."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from math import ceil

import torch

from engine.evaluation.runner.cuda import FLUSH_BYTES

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_LEAST_OF, _FLUSHES_TIMED = 20, 5
COLD_UP_TO_MS = 5.0
"""Work on a GPU that takes longer does not show that its first launches from Python were cold."""
_LAUNCHED_WITHIN_MS = 0.4
"""Launching a call from Python takes less, once it is warm: 0.02 to 0.12 ms for one operator on an H200's host."""


class JudgeDevice:
    """``kind`` is "cpu" or "cuda" (the first visible one).

    ``flushes``: how often a GPU's L2 cache is evicted before a timed call, of the reference and of a kernel alike, 0 on
    a CPU. Once would do for the cache. The GPU is kept busy until the call has been launched: else its clock would
    run while it waits for Python, which takes longer the less the processor has to do with PyTorch otherwise.
    """

    def __init__(self, kind: str, threads: int) -> None:
        self.kind = kind
        self.cuda = kind == "cuda"
        if self.cuda:
            self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
            self._start = torch.cuda.Event(enable_timing=True)
            self._stop = torch.cuda.Event(enable_timing=True)
            self.flushes = 1
            once_ms = min(self.time_ms(self._flush.zero_) for _ in range(_FLUSHES_TIMED))
            self.flushes = ceil(_LAUNCHED_WITHIN_MS / once_ms)
        else:
            self.flushes = 0
            torch.set_num_threads(threads)
            keep_freed_memory()

    def time_ms(self, call: Callable[[], object]) -> float:
        """One call: events with a cold L2 cache on a GPU, the monotonic clock on a CPU."""
        if not self.cuda:
            start = time.perf_counter()
            call()
            return (time.perf_counter() - start) * 1e3
        for _ in range(self.flushes):
            self._flush.zero_()
        self._start.record()
        call()
        self._stop.record()
        torch.cuda.synchronize()
        return float(self._start.elapsed_time(self._stop))

    def least_ms(self) -> float:
        """What the clock says now of work that is next to nothing: no call can take less. 0 on a CPU."""
        if not self.cuda:
            return 0.0
        little = self._flush[:1]
        return sorted(self.time_ms(little.zero_) for _ in range(_LEAST_OF))[_LEAST_OF // 4]

    def settle(self) -> None:
        """Wait until the device has done other processes' work as well, or has put it aside for this one's.

        Their work in progress is not interrupted before the time that the driver gives to each process.
        """
        if self.cuda:
            self._flush[:1].zero_()
            torch.cuda.synchronize()

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def spare_bytes(self) -> int:
        """Memory that the inputs kept for one problem may take."""
        if self.cuda:
            return int(torch.cuda.mem_get_info()[0]) // 3
        pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return min(pages * size // 8, 1 << 30)


def keep_freed_memory() -> None:
    """Let glibc recycle blocks of any size instead of returning them to the system after each call.

    PyTorch allocates its output anew in each call; page faults there would flatter every kernel that is handed a
    buffer. This makes the eager baseline faster, which is the fair one to beat.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_TOP_PAD, 256 << 20)


def give_back_freed_memory() -> None:
    """Return to the system what was kept, once it is of no use any more."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
