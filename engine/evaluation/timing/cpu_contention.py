"""Measure what disturbs a kernel on the processor: other programs, waits for a core, and slow cores.

A core can run at half its speed while its other hardware thread is busy, even with another virtual machine's work.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine.session.records.verdict import BUSY

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_current_core = ctypes.CDLL(None).sched_getcpu  # Python's os module lacks this function.


def processor_s(pid: int | None) -> float:
    """Return the processor time of all threads of a process, in seconds, or 0 if the process has ended."""
    if pid is not None:
        # This number is the process's CPUCLOCK_SCHED clock; see include/linux/posix-timers_types.h in Linux.
        with contextlib.suppress(OSError):
            return time.clock_gettime((~pid << 3) | 2)
    return 0.0


def schedule_of(pid: int | None) -> dict[str, tuple[float, float]]:
    """Return how many seconds each live thread of a process has run, and how many it has waited for a core.

    See /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst in Linux). The result is empty if the
    process has ended, and on systems without this file.
    """
    found: dict[str, tuple[float, float]] = {}
    if pid is not None:
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                ran_ns, waited_ns = map(int, file.read_text().split()[:2])
                found[file.parent.name] = ran_ns / 1e9, waited_ns / 1e9
    return found


class CpuContention:
    """Processor use by other programs, and the kernels' waits for a core, since this object was created.

    ``runners``: pids of the kernels' processes, or None if unknown. These processes must be alive when ``share`` is
    called.
    """

    def __init__(self, *runners: int | None) -> None:
        self._runners = runners
        self._start = time.monotonic()
        self._idle, self._own = _idle_s(), self._own_s()
        self._schedules = [schedule_of(runner) for runner in runners]

    def share(self) -> float:
        """Return the processor time of other programs and virtual machines, as a share of all cores: 0 to 1."""
        available = (time.monotonic() - self._start) * (os.cpu_count() or 1)
        used = available - (_idle_s() - self._idle)
        others = used - (self._own_s() - self._own)
        # The system counts in ticks, so one tick per core is within the measurement error.
        return max(0.0, others - (os.cpu_count() or 1) / _TICKS_PER_S) / available if available > 0 else 0.0

    def disturbed(self) -> bool:
        """Return whether other programs' processor use, or a kernel thread's wait for a core, exceeds the share
        ``BUSY``.

        The former is a share of all cores, the latter a share of the elapsed time. Two threads of a kernel can share a
        core while another core is idle. A process with more busy threads than cores makes its own threads wait, so the
        method ignores its waits.
        """
        least_s = BUSY * (time.monotonic() - self._start)
        return self.share() > BUSY or any(
            _waited(before, schedule_of(runner), least_s)
            for runner, before in zip(self._runners, self._schedules, strict=True)
        )

    def _own_s(self) -> float:
        return time.process_time() + sum(processor_s(runner) for runner in self._runners)


def _waited(before: dict[str, tuple[float, float]], now: dict[str, tuple[float, float]], least_s: float) -> bool:
    """Return whether any thread of a process waited longer than ``least_s`` for a core. If the process has more busy
    threads than cores, return False.
    """
    spent = [
        (ran - before[thread][0], waited - before[thread][1])
        for thread, (ran, waited) in now.items()
        if thread in before
    ]
    busy = sum(ran + waited > least_s for ran, waited in spent)
    return busy <= len(os.sched_getaffinity(0)) and any(waited > least_s for _, waited in spent)


def _idle_s() -> float:
    """Return the idle seconds of all cores since boot (proc(5), /proc/stat), which Linux counts exactly."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return (int(fields[4]) + int(fields[5])) / _TICKS_PER_S
    return 0.0


@contextmanager
def on_one_core(*pids: int) -> Iterator[None]:
    """While the context is open, keep this thread and the main threads of other processes on this thread's current
    core.

    Only one of these processes runs at a time, because the judge stops the kernels' processes between their calls.
    Afterward, all threads of the other processes may use the cores that their main threads had before. Otherwise,
    threads that start while the context is open would keep the single core that they inherit.
    """
    core, mine = {_current_core()}, os.sched_getaffinity(0)
    before = {pid: _cores_of(pid) for pid in pids}
    try:
        if core <= mine:  # The function returns -1 if the system does not know the core.
            _keep([0, *pids], core)
        yield
    finally:
        for pid, cores in before.items():
            _keep(_threads_of(pid), cores)
        _keep([0], mine)


def _cores_of(pid: int) -> set[int]:
    with contextlib.suppress(OSError):
        return os.sched_getaffinity(pid)
    return set()


def _threads_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - only the names
    return []


def _keep(threads: Sequence[int], cores: set[int]) -> None:
    """Restrict threads to ``cores`` if they are still alive and the system permits it."""
    for thread in threads:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, cores)
