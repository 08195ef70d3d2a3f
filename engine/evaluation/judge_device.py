"""The judge's device: its clock, its cache eviction and its free memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from ctypes import c_size_t, c_uint64, c_void_p
from functools import cached_property, partial
from math import ceil

import psutil
import torch

from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.inside.cuda import Driver
from engine.system.memory import keep_freed_memory

_DEVICE = POLICY.device


class JudgeDevice:
    """One device. ``kind``: "cpu" or "cuda" (the first visible GPU).

    The constructor does not time anything, because another process may be using the device.
    """

    def __init__(self, kind: str, threads: int) -> None:
        self.kind = kind
        self.cuda = kind == "cuda"
        if self.cuda:
            self._driver = Driver()
            self._flush = torch.empty(POLICY.sandbox.flush_bytes, dtype=torch.uint8, device="cuda")
            self._start = torch.cuda.Event(enable_timing=True)
            self._stop = torch.cuda.Event(enable_timing=True)
        else:
            torch.set_num_threads(threads)
            keep_freed_memory()

    @cached_property
    def flushes(self) -> int:
        """Number of L2 evictions before a timed GPU call; 0 on a CPU.

        One eviction empties the cache. Additional evictions keep the GPU busy until Python has launched the call, so
        that the call's time excludes the launch.
        """
        if not self.cuda:
            return 0
        return ceil(_DEVICE.launched_ms / self._eviction_ms)

    @cached_property
    def _eviction_ms(self) -> float:
        eviction = self._eviction_on(torch.cuda.current_stream())
        return min(self._event_ms(eviction, 1) for _ in range(_DEVICE.flushes_timed))

    def writes_ms(self) -> float:
        """Time a fixed number of memory writes on a GPU, in milliseconds. The first eviction keeps the GPU busy until
        the processor has launched the writes, so the processor's speed hardly matters.
        """
        eviction, count = self._eviction_on(torch.cuda.current_stream()), ceil(_DEVICE.writes_ms / self._eviction_ms)
        return self._event_ms(lambda: [eviction() for _ in range(count)], 1)

    def time_ms(self, call: Callable[[], object]) -> float:
        """Time one call in milliseconds. On a GPU, use events and a cold L2 cache; on a CPU, use the monotonic
        clock.
        """
        if not self.cuda:
            start = time.perf_counter()
            call()
            return (time.perf_counter() - start) * 1e3
        return self._event_ms(call, self.flushes)

    def _event_ms(self, call: Callable[[], object], flushes: int) -> float:
        stream = torch.cuda.current_stream()
        eviction = self._eviction_on(stream)
        for _ in range(flushes):
            eviction()
        self._start.record(stream)
        call()
        self._stop.record(stream)
        torch.cuda.synchronize()
        return float(self._start.elapsed_time(self._stop))

    def _eviction_on(self, stream: torch.cuda.Stream) -> Callable[[], None]:
        """Return a function that evicts the L2 cache as the runner does. Judge and runner can then launch a timed call
        equally far ahead of the GPU.
        """
        address, size = c_uint64(self._flush.data_ptr()), c_size_t(self._flush.nbytes)
        return partial(self._driver.call, "cuMemsetD8Async", address, 0, size, c_void_p(stream.cuda_stream))

    def least_ms(self) -> float:
        """Return the minimum time of any GPU call, in milliseconds, measured with two events around almost no work.
        Return 0 on a CPU.
        """
        if not self.cuda:
            return 0.0
        little = self._flush[:1]
        return sorted(self.time_ms(little.zero_) for _ in range(_DEVICE.least_timed))[_DEVICE.least_timed // 4]

    def settle(self) -> None:
        """Wait until the device has finished or suspended work from other processes."""
        if self.cuda:
            self._flush[:1].zero_()
            torch.cuda.synchronize()

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def free_bytes(self) -> int:
        """Return the free device memory in bytes."""
        if self.cuda:
            return int(torch.cuda.mem_get_info()[0])
        # Cached files eventually fill most of the memory, so count all memory that the system could provide.
        return int(psutil.virtual_memory().available)

    def spare_bytes(self) -> int:
        """Return the number of bytes that the trials of one problem may use."""
        return self.free_bytes() // 3 if self.cuda else min(self.free_bytes() // 8, 1 << 30)
