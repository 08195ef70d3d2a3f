"""Keep the judge and a kernel's process on the same core of the processor."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_current_core = ctypes.CDLL(None).sched_getcpu  # Python's os module lacks this function.


@contextmanager
def on_one_core(pid: int) -> Iterator[None]:
    """While the context is open, keep this thread and the main thread of process ``pid`` on this thread's current core.

    A core can be half as fast as another while its neighboring hardware thread is busy, even in another virtual
    machine. Times of two processes that launch from Python are comparable only on one core. This costs nothing if only
    one of the two processes runs at a time.
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
