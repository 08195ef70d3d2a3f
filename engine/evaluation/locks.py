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
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

_POLL_S = 0.005


def lock_path(device: str) -> Path:
    """The lock file of a device id, the same for all users of this machine."""
    directory = Path(tempfile.gettempdir()) / "kernel-tui-locks"
    directory.mkdir(mode=0o777, exist_ok=True)
    with contextlib.suppress(PermissionError):
        directory.chmod(0o1777)
    return directory / f"{device.replace('/', '_')}.lock"


def _open(device: str) -> int:
    path = lock_path(device)
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
def alone(device: str, cancelled: Callable[[], bool]) -> Iterator[bool]:
    """Hold the device exclusively; yields False when ``cancelled`` while waiting for it."""
    descriptor = _open(device)
    try:
        while not (held := _try(descriptor, fcntl.LOCK_EX)) and not cancelled():
            time.sleep(_POLL_S)
        yield held
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def shared(device: str) -> AsyncIterator[None]:
    """Hold the device beside other builders."""
    descriptor = _open(device)
    try:
        while not _try(descriptor, fcntl.LOCK_SH):  # noqa: ASYNC110 - other processes set no event here
            await asyncio.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
