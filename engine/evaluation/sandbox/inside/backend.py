"""A runner's interface to its device: memory, timed calls and a queue. ``cuda.py`` implements this interface
for GPUs.
"""

from __future__ import annotations

import ctypes
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from engine.evaluation.sandbox.inside.abi import LIBC, Mmap

TYPE_CHECKING = False  # Importing typing takes milliseconds.
if TYPE_CHECKING:
    from typing import Any

    Call = tuple[Callable[..., Any], Sequence[Any]]
    """A function that calls the kernel once, and the function's arguments. A nonzero integer result means that the
    call failed.
    """

_READ_WRITE, _PRIVATE = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def make(calls: Sequence[Call]) -> Any:
    """Execute ``calls`` until one fails. Return the result of the last call."""
    for call, arguments in calls:
        result = call(*arguments)
        if type(result) is int and result:
            break
    return result


class Backend(ABC):
    """A device. ``launch_arguments``: arguments of a compiled kernel's ``launch`` after the addresses."""

    launch_arguments: Sequence[Any] = ()

    @abstractmethod
    def map(self, descriptor: int, nbytes: int) -> int:
        """Map the judge's buffers, and return their address in this process."""

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Allocate a workspace, and return its address. Raises ``MemoryError`` or the driver's error."""

    @abstractmethod
    def run(self, calls: Sequence[Call]) -> Any:
        """Execute ``calls`` with :func:`make`, and time them."""

    @abstractmethod
    def times_ms(self) -> list[float]:
        """Wait for the device, and return the time of each call in the last run, in milliseconds."""

    def flush(self, times: int) -> None:  # noqa: B027 - a CPU has no such cache
        """Evict the device's cache ``times`` times."""

    def synchronize(self) -> None:  # noqa: B027 - a CPU has finished when the call returns
        """Wait for the device to finish."""

    def launches(self, call: Callable[[], object], stream: int | None = None) -> list[Any]:
        """Return the GPU launches of ``call`` (``launches.py``), or [] if they are unknown. ``stream``: the stream that
        ``call`` uses, or None for the backend's stream.
        """
        return []

    def hold(self, number: int) -> bool:
        """Hold back later calls until the judge sets its gate to ``number``. Return False if the device does not
        support gates.
        """
        return False


class CpuBackend(Backend):
    """The CPU backend.

    This backend uses memory that the judge shares, and reads the monotonic clock around each call. ``guard_bytes``:
    size of the inaccessible memory around the judge's buffers and after a workspace. ``clock``: returns the function
    that reads the clock, in seconds. Threat: out-of-bounds.
    """

    def __init__(self, guard_bytes: int, clock: Callable[[], Callable[[], float]]) -> None:
        self._guard_bytes, self._clock = guard_bytes, clock
        self._times_ms: list[float] = []

    def run(self, calls: Sequence[Call]) -> Any:
        clock, times_ms = self._clock(), list[float]()
        for call, arguments in calls:
            started = clock()
            result = call(*arguments)
            times_ms.append((clock() - started) * 1e3)
            if type(result) is int and result:
                break
        self._times_ms = times_ms
        return result

    def times_ms(self) -> list[float]:
        return self._times_ms

    def map(self, descriptor: int, nbytes: int) -> int:
        place = _map(None, nbytes + 2 * self._guard_bytes, _PRIVATE, Mmap.NO_ACCESS) + self._guard_bytes
        return _map(place, nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE | Mmap.FIXED, descriptor=descriptor)

    def allocate(self, nbytes: int) -> int:
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        place = _map(None, size + self._guard_bytes, _PRIVATE, Mmap.NO_ACCESS)
        return _map(place, size, _PRIVATE | Mmap.FIXED)


def _map(address: int | None, nbytes: int, flags: int, protection: int = _READ_WRITE, descriptor: int = -1) -> int:
    size, offset = ctypes.c_size_t(nbytes), ctypes.c_long(0)
    found = LIBC.mmap(ctypes.c_void_p(address), size, protection, flags, descriptor, offset)
    if found in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"the runner cannot allocate {nbytes:,} bytes")
    return int(found)
