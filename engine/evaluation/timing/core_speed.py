"""Make times of launches from Python comparable although the processor's cores differ in speed.

A core can be half as fast as another while its neighboring hardware thread is busy, even in another virtual machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine.evaluation.judge_policy import POLICY

_current_core = ctypes.CDLL(None).sched_getcpu  # Python's os module lacks this function.


def core_ms() -> float:
    """Return the time of a fixed loop on the current core, about 0.1 ms. A slow core takes longer."""
    started, total = time.perf_counter(), 0
    for number in range(POLICY.device.core_iterations):
        total += number * number
    return 1e3 * (time.perf_counter() - started)


@contextmanager
def on_one_core(pid: int) -> Iterator[None]:
    """While the context is open, keep this thread and the main thread of process ``pid`` on this thread's current core.

    Only one of the two processes may run at a time.
    """
    core = {_current_core()}
    mine, theirs = os.sched_getaffinity(0), _cores_of(pid)
    try:
        _keep(0, core)
        _keep(pid, core)
        yield
    finally:
        _keep(pid, theirs)
        _keep(0, mine)


def _cores_of(pid: int) -> set[int]:
    with contextlib.suppress(OSError):
        return os.sched_getaffinity(pid)
    return set()


def _keep(pid: int, cores: set[int]) -> None:
    """Restrict a thread to ``cores`` if it is still alive and the system permits it."""
    if cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, cores)
