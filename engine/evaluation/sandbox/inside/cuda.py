"""The CUDA backend of a runner, which calls the CUDA driver through ctypes.

The judge passes memory as a POSIX file descriptor (virtual memory management API). Unlike CUDA IPC handles, descriptors
work across PID namespaces. Source: CUDA Driver API, sections 6.14 and 6.18.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import struct
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from types import SimpleNamespace

from engine.evaluation.sandbox.inside.abi import Cuda
from engine.evaluation.sandbox.inside.backend import Backend, make
from engine.evaluation.sandbox.inside.launches import recorded

TYPE_CHECKING = False  # Importing typing takes milliseconds.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from engine.evaluation.sandbox.inside.backend import Call


class CudaError(Exception):
    """A failed driver call."""


class Driver:
    """The CUDA driver on device 0, with the device's primary context as the current context. Raises ``OSError`` or
    ``CudaError``.
    """

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        device, context = c_int(0), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._lib, name)(*arguments):
            text = c_char_p()
            self._lib.cuGetErrorString(code, byref(text))
            raise CudaError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    def export_memory(self, nbytes: int) -> tuple[int, int, int]:
        """Allocate device memory that another process can import. Return the address, the file descriptor, and the size
        rounded up to the granularity.
        """
        # The fields of CUmemAllocationProp: type, handle types, location type and number; then an unused pointer and
        # flags.
        properties = struct.pack("4i16x", Cuda.ALLOCATION_PINNED, Cuda.POSIX_DESCRIPTOR, Cuda.LOCATION_DEVICE, 0)
        granularity, handle, descriptor = c_size_t(), c_uint64(), c_int()
        self.call("cuMemGetAllocationGranularity", byref(granularity), properties, 0)
        size = -(-nbytes // granularity.value) * granularity.value
        self.call("cuMemCreate", byref(handle), c_size_t(size), properties, c_uint64(0))
        self.call("cuMemExportToShareableHandle", byref(descriptor), handle, Cuda.POSIX_DESCRIPTOR, c_uint64(0))
        return self._map(handle, size), descriptor.value, size

    def import_memory(self, descriptor: int, size: int) -> int:
        """Map memory that another process exported, and return the memory's address in this process."""
        handle = c_uint64()
        self.call("cuMemImportFromShareableHandle", byref(handle), c_void_p(descriptor), Cuda.POSIX_DESCRIPTOR)
        return self._map(handle, size)

    def _map(self, handle: c_uint64, size: int) -> int:
        address = c_uint64()
        self.call("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
        self.call("cuMemMap", address, c_size_t(size), c_size_t(0), handle, c_uint64(0))
        access = struct.pack("3i", Cuda.LOCATION_DEVICE, 0, Cuda.ACCESS_READ_WRITE)  # The format is CUmemAccessDesc.
        self.call("cuMemSetAccess", address, c_size_t(size), access, c_size_t(1))
        self.call("cuMemRelease", handle)  # The mapping keeps the memory alive.
        return int(address.value)

    def unmap(self, address: int, size: int) -> None:
        self.call("cuMemUnmap", c_uint64(address), c_size_t(size))
        self.call("cuMemAddressFree", c_uint64(address), c_size_t(size))


def begin() -> None:
    """Initialize the driver. If the initialization fails, :class:`Driver` reports the error."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuInit(0)


def device_bytes(address: int, size: int) -> object:
    """Return an object that ``torch.as_tensor`` converts to a tensor of this device memory, without a copy."""
    interface = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None}
    return SimpleNamespace(__cuda_array_interface__=interface)


class CudaBackend(Backend):
    """The GPU backend: device memory that the judge exported, a stream, a pair of events around calls, and the judge's
    gate.

    ``flush_bytes``: size of the buffer that the backend overwrites to evict the L2 cache. ``default_stream``: whether
    to use PyTorch's stream. ``gate``: descriptor of the gate in the judge's memory, if the judge uses a gate.

    Raises ``OSError`` or ``CudaError``.
    """

    def __init__(self, flush_bytes: int, default_stream: bool, gate: Sequence[int]) -> None:
        self._driver, self._flush_bytes, self._count = Driver(), flush_bytes, 0
        self._stream, self._start, self._stop = c_void_p(), c_void_p(), c_void_p()
        self._flush, self._gate, self._has_gate = c_uint64(), c_uint64(), False
        if not default_stream:
            self._driver.call("cuStreamCreate", byref(self._stream), 0)
        self._driver.call("cuEventCreate", byref(self._start), 0)
        self._driver.call("cuEventCreate", byref(self._stop), 0)
        self._driver.call("cuMemAlloc_v2", byref(self._flush), c_size_t(flush_bytes))
        self.launch_arguments = [self._stream]
        # An old driver may lack this function.
        with contextlib.suppress(CudaError, AttributeError, IndexError, OSError):
            self._word = mmap.mmap(gate[0], mmap.PAGESIZE)
            here = c_void_p(ctypes.addressof(c_uint32.from_buffer(self._word)))
            self._driver.call("cuMemHostRegister_v2", here, c_size_t(mmap.PAGESIZE), Cuda.HOST_REGISTER_DEVICEMAP)
            self._driver.call("cuMemHostGetDevicePointer_v2", byref(self._gate), here, 0)
            self._has_gate = True

    def map(self, descriptor: int, nbytes: int) -> int:
        return self._driver.import_memory(descriptor, nbytes)

    def allocate(self, nbytes: int) -> int:
        address = c_uint64()
        self._driver.call("cuMemAlloc_v2", byref(address), c_size_t(nbytes))
        self._driver.call("cuMemsetD8_v2", address, 0xFF, c_size_t(nbytes))
        return int(address.value)

    def run(self, calls: Sequence[Call]) -> Any:
        """Record one pair of events around all calls, because reading a GPU's clock takes as long as a short kernel."""
        self._count = len(calls)
        self._driver.call("cuEventRecord", self._start, self._stream)
        result = make(calls)
        self._driver.call("cuEventRecord", self._stop, self._stream)
        return result

    def times_ms(self) -> list[float]:
        self.synchronize()
        return [self.elapsed_ms() / self._count] * self._count

    def elapsed_ms(self) -> float:
        """Return the time between the two events, in milliseconds."""
        elapsed = c_float()
        self._driver.call("cuEventElapsedTime", byref(elapsed), self._start, self._stop)
        return elapsed.value

    def flush(self, times: int) -> None:
        for _ in range(times):
            self._fill(self._flush_bytes)

    def _fill(self, nbytes: int) -> None:
        self._driver.call("cuMemsetD8Async", self._flush, 0, c_size_t(nbytes), self._stream)

    def synchronize(self) -> None:
        self._driver.synchronize()

    def launches(self, call: Callable[[], object], stream: int | None = None) -> list[Any]:
        try:
            return recorded(self._driver.call, self._stream if stream is None else c_void_p(stream), call, CudaError)
        except (CudaError, AttributeError):  # An old driver may lack a function.
            return []

    def hold(self, number: int) -> bool:
        """Hold back later work on the stream until the gate's word reaches ``number``.

        The function also queues a minimal operation, so that the GPU switches to this process even for an empty kernel.
        """
        if self._has_gate:
            word = c_uint32(number)
            self._driver.call("cuStreamWaitValue32_v2", self._stream, self._gate, word, Cuda.WAIT_VALUE_GEQ)
            self._fill(4)
        return self._has_gate
