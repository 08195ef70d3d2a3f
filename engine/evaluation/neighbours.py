"""How busy other programs keep the processor while a kernel is timed: a remark, and an excuse for its clock."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def processor_s(pid: int | None) -> float:
    """Processor time of a process, all threads, as the kernel of the system counts it; 0 where it is gone."""
    if pid is not None:
        # CPUCLOCK_SCHED of a process: include/linux/posix-timers_types.h
        with contextlib.suppress(OSError):
            return time.clock_gettime((~pid << 3) | 2)
    return 0.0


class Neighbours:
    """Measures from its construction on. ``runners``: the pids of the kernels' processes as seen here, None unknown.

    To be asked while the runners live.
    """

    def __init__(self, *runners: int | None) -> None:
        self._runners = runners
        self._start = time.monotonic()
        self._idle, self._own = _idle_s(), self._own_s()

    def share(self) -> float:
        """Processor time of all other programs (and of other virtual machines) over that of all cores, 0 to 1."""
        available = (time.monotonic() - self._start) * (os.cpu_count() or 1)
        used = available - (_idle_s() - self._idle)
        others = used - (self._own_s() - self._own)
        # The system counts in ticks: what is less than one of them on each core is nothing.
        return max(0.0, others - _TICK_S * (os.cpu_count() or 1)) / available if available > 0 else 0.0

    def _own_s(self) -> float:
        return time.process_time() + sum(processor_s(runner) for runner in self._runners)


def _idle_s() -> float:
    """Seconds that cores were idle since boot: proc(5), /proc/stat. Counted exactly, unlike those of programs."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return (int(fields[4]) + int(fields[5])) * _TICK_S
    return 0.0
