"""Whose turn it is on a device, between processes: ``flock`` on one file per device.

Who times on a device holds it alone. Who builds on the processor shares it with other builders, so that nothing is
ever compiled on cores that are timing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

_POLL_S = 0.005
_OPEN: set[int] = set()


def _close_in_child() -> None:
    """A lock lives as long as any copy of its descriptor: a problem that forks must not keep the device."""
    while _OPEN:
        with contextlib.suppress(OSError):
            os.close(_OPEN.pop())


os.register_at_fork(after_in_child=_close_in_child)


def lock_path(device: str) -> Path:
    """The lock file of a device id, the same for all users of this machine."""
    directory = Path(tempfile.gettempdir()) / "kernel-tui-locks"
    directory.mkdir(mode=0o777, exist_ok=True)
    with contextlib.suppress(PermissionError):
        directory.chmod(0o1777)
    return directory / f"{device.replace('/', '_')}.lock"


def queue_path(device: str) -> Path:
    """The lock file of whoever is next on the device."""
    return lock_path(device).with_suffix(".queue")


def _open(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(PermissionError):
        path.chmod(0o666)
    return descriptor


def _try(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _files(device: str) -> Iterator[tuple[int, int]]:
    """The device's lock and the queue before it: who waits there keeps later comers from overtaking."""
    queue, device_lock = _open(queue_path(device)), _open(lock_path(device))
    _OPEN.update((queue, device_lock))
    try:
        yield queue, device_lock
    finally:
        for descriptor in (device_lock, queue):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            _OPEN.discard(descriptor)
            os.close(descriptor)


@contextlib.contextmanager
def alone(device: str, cancelled: Callable[[], bool]) -> Iterator[bool]:
    """Hold the device exclusively; yields False when ``cancelled`` while waiting for it.

    The file's time of modification says since when it is held.
    """
    with _files(device) as (queue, device_lock):
        held = True
        for descriptor in (queue, device_lock):
            while held and not _try(descriptor, fcntl.LOCK_EX):
                held = not cancelled()
                time.sleep(_POLL_S)
        fcntl.flock(queue, fcntl.LOCK_UN)
        if held:
            with contextlib.suppress(OSError):
                os.utime(device_lock)
        yield held


@contextlib.asynccontextmanager
async def shared(device: str, most_s: float) -> AsyncIterator[None]:
    """Hold the device beside other builders, for ``most_s`` seconds at most: an event loop that stands still must not
    keep it from all others."""
    with _files(device) as (queue, device_lock):
        # The queue is held by one alone here too: builders who share it would keep whoever times out for ever.
        for descriptor, operation in ((queue, fcntl.LOCK_EX), (device_lock, fcntl.LOCK_SH)):
            while not _try(descriptor, operation):  # noqa: ASYNC110 - other processes set no event here
                await asyncio.sleep(_POLL_S)
        fcntl.flock(queue, fcntl.LOCK_UN)
        limit = threading.Timer(most_s, fcntl.flock, (device_lock, fcntl.LOCK_UN))
        limit.daemon = True
        limit.start()
        try:
            yield
        finally:
            limit.cancel()
            limit.join()  # the descriptor may be another file's as soon as it is closed
