"""Let processes take turns on a device: each process locks one file per device with ``flock``.

A process that times kernels on a device holds the device's lock exclusively. CPU builders share the lock, so that no
build disturbs timing. Through a second file, the exclusive holder may ask all other processes to release device memory.
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

from engine.evaluation.judge_policy import POLICY

_LOCK_S = POLICY.admission.lock_s
_OPEN: set[int] = set()


def _close_in_child() -> None:
    """Close inherited lock files in forked processes, because a lock persists as long as any copy of its descriptor is
    open. A problem's code may fork processes.
    """
    while _OPEN:
        with contextlib.suppress(OSError):
            os.close(_OPEN.pop())


os.register_at_fork(after_in_child=_close_in_child)


def lock_path(device: str) -> Path:
    """Return a device's lock file, which all users of this machine share."""
    directory = Path(tempfile.gettempdir()) / "kernel-tui-locks"
    directory.mkdir(mode=0o777, exist_ok=True)
    with contextlib.suppress(PermissionError):
        directory.chmod(0o1777)
    return directory / f"{device.replace('/', '_')}.lock"


def queue_path(device: str) -> Path:
    """Return the file that the head of the queue locks. The head is the next process to use the device."""
    return lock_path(device).with_suffix(".queue")


def _memory_path(device: str) -> Path:
    """Return the file that a process locks while it asks for device memory."""
    return lock_path(device).with_suffix(".memory")


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
def _file(path: Path) -> Iterator[int]:
    """Open a lock file without locking it. Leaving the context releases any lock, even if a child has a copy of the
    descriptor.
    """
    descriptor = _open(path)
    _OPEN.add(descriptor)
    try:
        yield descriptor
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        _OPEN.discard(descriptor)
        os.close(descriptor)


@contextlib.contextmanager
def _files(device: str) -> Iterator[tuple[int, int]]:
    """Open the device's queue file and lock file. The queue file prevents later processes from overtaking a waiting
    process.
    """
    with _file(queue_path(device)) as queue, _file(lock_path(device)) as device_lock:
        yield queue, device_lock


def is_awaited(device: str) -> bool:
    """Return whether another process is waiting for ``device``. Only the device's holder may call this function."""
    with _file(queue_path(device)) as queue:
        return not _try(queue, fcntl.LOCK_EX)


@contextlib.contextmanager
def asking_for_memory(device: str) -> Iterator[None]:
    """Ask every other judge on ``device`` to release its memory. Only the device's exclusive holder may call this
    function.
    """
    with _file(_memory_path(device)) as memory:
        fcntl.flock(memory, fcntl.LOCK_EX)  # A process that checks the file locks it for microseconds.
        yield


def memory_is_asked_for(device: str) -> bool:
    """Return whether the holder of ``device`` is asking for memory. The holder itself must not call this function."""
    with _file(_memory_path(device)) as memory:
        return not _try(memory, fcntl.LOCK_SH)


@contextlib.contextmanager
def alone(device: str, cancelled: Callable[[], bool]) -> Iterator[bool]:
    """Lock the device exclusively; yield False if ``cancelled`` returns true during the wait.

    The lock file's modification time shows when a process took the lock.
    """
    with _files(device) as (queue, device_lock):
        held = True
        for descriptor in (queue, device_lock):
            while held and not _try(descriptor, fcntl.LOCK_EX):
                held = not cancelled()
                time.sleep(_LOCK_S)
        fcntl.flock(queue, fcntl.LOCK_UN)
        if held:
            with contextlib.suppress(OSError):
                os.utime(device_lock)
        yield held


@contextlib.asynccontextmanager
async def shared(device: str, most_s: float) -> AsyncIterator[None]:
    """Share the device with other builders, for at most ``most_s`` seconds.

    Without this limit, a blocked event loop could keep the device forever.
    """
    with _files(device) as (queue, device_lock):
        # Builders enter the queue one at a time, because a queue shared by builders would lock out processes that time
        # kernels.
        for descriptor, operation in ((queue, fcntl.LOCK_EX), (device_lock, fcntl.LOCK_SH)):
            while not _try(descriptor, operation):  # noqa: ASYNC110 - other processes set no event here
                await asyncio.sleep(_LOCK_S)
        fcntl.flock(queue, fcntl.LOCK_UN)
        limit = threading.Timer(most_s, fcntl.flock, (device_lock, fcntl.LOCK_UN))
        limit.daemon = True
        limit.start()
        try:
            yield
        finally:
            limit.cancel()
            limit.join()  # After the file is closed, its descriptor may refer to another file.
