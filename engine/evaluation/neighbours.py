"""How busy other programs keep the processor while a kernel is timed: a remark, and an excuse for its clock."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

BUSY = 0.15
"""Share of all cores that others may use before a clock that disagrees is blamed on them."""

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Neighbours:
    """Measures from its construction on. ``runners``: the pids of the kernels' processes as seen here, None unknown."""

    def __init__(self, *runners: int | None) -> None:
        self._runners = [runner for runner in runners if runner is not None]
        self._start = time.monotonic()
        self._busy, self._own = _busy_s(), self._own_s()

    def share(self) -> float:
        """Processor time of all other programs (and of other virtual machines) over that of all cores, 0 to 1."""
        elapsed = (time.monotonic() - self._start) * (os.cpu_count() or 1)
        others = (_busy_s() - self._busy) - (self._own_s() - self._own)
        return max(0.0, others / elapsed) if elapsed > 0 else 0.0

    def _own_s(self) -> float:
        spent = time.process_time()
        for runner in self._runners:
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{runner}/stat").read_text().rpartition(")")[2].split()
                spent += (int(fields[11]) + int(fields[12])) * _TICK_S
        return spent


def _busy_s() -> float:
    """Seconds that cores were not idle since boot: proc(5), /proc/stat."""
    with contextlib.suppress(OSError, ValueError):
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return (sum(fields) - fields[3] - fields[4]) * _TICK_S
    return 0.0
