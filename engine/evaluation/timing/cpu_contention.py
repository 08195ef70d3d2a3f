"""Measure the processor time that other programs use while the judge times a kernel."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from engine.session.records.verdict import BUSY

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processor_s(pid: int | None) -> float:
    """Return the processor time of all threads of a process, in seconds, or 0 after the end of the process."""
    if pid is not None:
        # CPUCLOCK_SCHED of a process: include/linux/posix-timers_types.h.
        with contextlib.suppress(OSError):
            return time.clock_gettime((~pid << 3) | 2)
    return 0.0


def waiting_s(pid: int | None) -> float:
    """Return the time that a process's live threads have waited for a core, in seconds; 0 after the end of the process.

    The wait is the second number in /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst in Linux).
    """
    total_ns = 0
    if pid is not None:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                total_ns += int(thread.read_text().split()[1])
    return total_ns / 1e9


class CpuContention:
    """Processor use of other programs since the creation of this object.

    ``runners``: pids of the kernels' processes, or None if unknown. These processes must be alive during the call of
    ``share``.
    """

    def __init__(self, *runners: int | None) -> None:
        self._runners = runners
        self._start = time.monotonic()
        self._idle, self._own, self._waiting = _idle_s(), self._own_s(), self._waiting_s()

    def share(self) -> float:
        """Return the processor time of other programs and virtual machines, as a share of all cores: 0 to 1."""
        available = (time.monotonic() - self._start) * (os.cpu_count() or 1)
        used = available - (_idle_s() - self._idle)
        others = used - (self._own_s() - self._own)
        # The system counts in ticks, so one tick per core is within the measurement error.
        return max(0.0, others - (os.cpu_count() or 1) / _TICKS_PER_S) / available if available > 0 else 0.0

    def disturbs(self) -> bool:
        """Return whether other programs used more than ``BUSY`` of all cores, or the kernels' threads waited for a core
        longer than this share of the time.

        Two threads of a kernel can share a core while another core is idle.
        """
        elapsed_s = time.monotonic() - self._start
        return self.share() > BUSY or self._waiting_s() - self._waiting > BUSY * elapsed_s

    def _own_s(self) -> float:
        return time.process_time() + sum(processor_s(runner) for runner in self._runners)

    def _waiting_s(self) -> float:
        return sum(waiting_s(runner) for runner in self._runners)


def _idle_s() -> float:
    """Return the idle seconds of all cores since boot (proc(5), /proc/stat), which the kernel counts exactly."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return (int(fields[4]) + int(fields[5])) / _TICKS_PER_S
    return 0.0
