"""Measure how quiet the machine is: the share of the processor that other programs use."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.session.records.verdict import BUSY

REASON = "needs a quiet machine"
"""Prefix of the skip reason on a busy machine; ``.ci/run`` counts these skips."""
MOST_STEAL = 0.05
"""Share of all cores that other virtual machines may take, because clocks keep running meanwhile."""
MOST_OTHERS = BUSY
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """Shares of all cores, 0 to 1: ``steal`` by other virtual machines, ``others`` by processes outside the tests."""

    steal: float
    others: float

    @property
    def is_quiet(self) -> bool:
        return self.steal <= MOST_STEAL and self.others <= MOST_OTHERS

    def __str__(self) -> str:
        cores = os.cpu_count() or 1
        return f"steal {self.steal:.0%}, other processes {self.others:.0%} of {cores} cores"


class LoadMeter:
    """A measurement that starts when the object is created."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._used_s, self._stolen_s = _processor_s()
        self._own_s = _own_s()

    def load(self) -> Load:
        available_s = (time.monotonic() - self._started_s) * (os.cpu_count() or 1)
        used_s, stolen_s = _processor_s()
        others_s = used_s - self._used_s - max(0.0, _own_s() - self._own_s)
        return Load(max(0.0, stolen_s - self._stolen_s) / available_s, max(0.0, others_s) / available_s)


def quiet_second(seconds: int) -> Load:
    """Return the load of the first quiet second, or that of the last one tried."""
    for _ in range(seconds):
        meter = LoadMeter()
        time.sleep(1)
        if (load := meter.load()).is_quiet:
            break
    return load


def _processor_s() -> tuple[float, float]:
    """Return the seconds that all processes have used, and those stolen, since boot: proc(5), /proc/stat."""
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) * _TICK_S, steal * _TICK_S


def _own_s() -> float:
    """Return the processor time of this test run: of its first process and all descendants, dead or alive."""
    pid = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    first = psutil.Process(pid)
    total = 0.0
    for process in (first, *first.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])  # including its ended children
        except psutil.NoSuchProcess:
            continue
    return total
