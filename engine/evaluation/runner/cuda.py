"""The few calls of the CUDA driver API that a runner needs, by ctypes: a context, shared memory, events.

Memory comes from the judge as a POSIX file descriptor (virtual memory management API), which works across PID
namespaces, where CUDA IPC handles do not. CUDA Driver API, sections 6.14 and 6.18.
"""

from __future__ import annotations

import ctypes
import mmap
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p

FLUSH_BYTES = 256 << 20
_POSIX_DESCRIPTOR = 1
_ACCESS_READ_WRITE = 3
_LOCATION_DEVICE = 1
_HOST_DEVICEMAP = 2
_WAIT_UNTIL_AT_LEAST = 0


class CudaError(Exception):
    """A driver call failed: ``code`` is the ``CUresult``."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})")
        self.code = code


class _AccessDescription(ctypes.Structure):
    _fields_ = (("location_type", c_int), ("location_id", c_int), ("flags", c_int))


class AllocationProperties(ctypes.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location_id", c_int),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Driver:
    """Device 0 of this process, its primary context made current. Raises ``OSError`` or ``CudaError``."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self.device = c_int(0)
        self.context = c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", byref(self.device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code != 0:
            text = c_char_p()
            self._lib.cuGetErrorString(code, byref(text))
            raise CudaError(name, code, (text.value or b"unknown error").decode())

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    def export_memory(self, nbytes: int) -> tuple[int, int, int]:
        """Allocate shareable device memory: (address, file descriptor, size rounded up to the granularity)."""
        properties = AllocationProperties(1, _POSIX_DESCRIPTOR, _LOCATION_DEVICE, 0, None)
        granularity = c_size_t()
        self.call("cuMemGetAllocationGranularity", byref(granularity), byref(properties), 0)
        size = -(-nbytes // granularity.value) * granularity.value
        handle = c_uint64()
        self.call("cuMemCreate", byref(handle), c_size_t(size), byref(properties), c_uint64(0))
        descriptor = c_int()
        self.call("cuMemExportToShareableHandle", byref(descriptor), handle, _POSIX_DESCRIPTOR, c_uint64(0))
        return self._map(handle, size), descriptor.value, size

    def import_memory(self, descriptor: int, size: int) -> int:
        """Map memory that another process exported; returns its address here."""
        handle = c_uint64()
        self.call("cuMemImportFromShareableHandle", byref(handle), c_void_p(descriptor), _POSIX_DESCRIPTOR)
        return self._map(handle, size)

    def unmap(self, address: int, size: int) -> None:
        self.call("cuMemUnmap", c_uint64(address), c_size_t(size))
        self.call("cuMemAddressFree", c_uint64(address), c_size_t(size))

    def _map(self, handle: c_uint64, size: int) -> int:
        address = c_uint64()
        self.call("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
        self.call("cuMemMap", address, c_size_t(size), c_size_t(0), handle, c_uint64(0))
        access = _AccessDescription(_LOCATION_DEVICE, 0, _ACCESS_READ_WRITE)
        self.call("cuMemSetAccess", address, c_size_t(size), byref(access), c_size_t(1))
        self.call("cuMemRelease", handle)  # the mapping keeps the memory
        return int(address.value)


class Stream:
    """A stream with a pair of events, and a buffer whose filling evicts the L2 cache.

    ``legacy``: the default stream, on which PyTorch works, instead of one of its own.
    """

    def __init__(self, driver: Driver, legacy: bool = False) -> None:
        self._driver = driver
        self.handle, self._start, self._stop = c_void_p(), c_void_p(), c_void_p()
        self._flush = c_uint64()
        if not legacy:
            driver.call("cuStreamCreate", byref(self.handle), 0)
        driver.call("cuEventCreate", byref(self._start), 0)
        driver.call("cuEventCreate", byref(self._stop), 0)
        driver.call("cuMemAlloc_v2", byref(self._flush), c_size_t(FLUSH_BYTES))

    def flush(self, times: int) -> None:
        for _ in range(times):
            self._driver.call("cuMemsetD8Async", self._flush, 0, c_size_t(FLUSH_BYTES), self.handle)

    def touch(self) -> None:
        """The least work."""
        self._driver.call("cuMemsetD8Async", self._flush, 0, c_size_t(4), self.handle)

    def start(self) -> None:
        self._driver.call("cuEventRecord", self._start, self.handle)

    def stop(self) -> None:
        self._driver.call("cuEventRecord", self._stop, self.handle)

    def elapsed_ms(self) -> float:
        elapsed = c_float()
        name = "cuEventElapsedTime"
        self._driver.call(name, byref(elapsed), self._start, self._stop)
        return elapsed.value

    def allocate(self, nbytes: int) -> int:
        address = c_uint64()
        self._driver.call("cuMemAlloc_v2", byref(address), c_size_t(max(nbytes, 256)))
        self._driver.call("cuMemsetD8_v2", address, 0xFF, c_size_t(max(nbytes, 256)))
        return int(address.value)


class Gate:
    """A word of the judge's memory. Work on a stream can be made to wait until the judge has set it.

    Raises ``CudaError``, or ``AttributeError`` where the driver is too old for it.
    """

    def __init__(self, driver: Driver, descriptor: int) -> None:
        self._driver = driver
        self._map = mmap.mmap(descriptor, mmap.PAGESIZE)
        here = c_void_p(ctypes.addressof(c_uint32.from_buffer(self._map)))
        self._address = c_uint64()
        driver.call("cuMemHostRegister_v2", here, c_size_t(mmap.PAGESIZE), _HOST_DEVICEMAP)
        driver.call("cuMemHostGetDevicePointer_v2", byref(self._address), here, 0)

    def hold(self, stream: Stream, number: int) -> None:
        """What is put on ``stream`` from now on runs once the word is ``number`` or more.

        Next to nothing is put there first, so that an empty kernel's calls make the GPU change from one process to
        another as well.
        """
        word = c_uint32(number)
        self._driver.call("cuStreamWaitValue32_v2", stream.handle, self._address, word, _WAIT_UNTIL_AT_LEAST)
        stream.touch()


def gate_of(driver: Driver, descriptors: list[int]) -> Gate | None:
    """The gate that the judge handed over; None where this driver has no such thing."""
    try:
        return Gate(driver, descriptors[0])
    except (CudaError, AttributeError, IndexError, OSError):
        return None
