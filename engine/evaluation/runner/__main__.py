"""Load one kernel, call it when the judge says so, report what the clock here says.

Arguments: the descriptors of the control socket and of the status pipe, "cpu" or "cuda", 1 to isolate, and the
cores to run on.
Nothing in this process is secret and nothing it reports is believed unchecked (``engine.evaluation.judge``).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import sys
import time
from collections.abc import Callable

sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 4)[0])  # noqa: PTH100

from engine.evaluation.runner import cuda, isolation, wire

_MAP_FIXED = 0x10
_GUARD_PAGES = 16 * mmap.PAGESIZE
_MOST_WORKSPACE_BYTES = 1 << 46


class CpuKernel:
    """A ``.cpp`` kernel on the shared buffers of a memfd."""

    def __init__(self, library: ctypes.CDLL, base: int) -> None:
        self._launch = library.launch
        self._launch.restype = ctypes.c_int
        self._base = base
        self.workspace_bytes, self._workspace = _workspace(library, self._allocate)
        self._arguments: dict[int, list[ctypes.c_void_p]] = {}

    def bind(self, slot: int, offsets: list[int]) -> None:
        addresses = [ctypes.c_void_p(self._base + offset) for offset in offsets]
        self._arguments[slot] = [*addresses, ctypes.c_void_p(self._workspace)]

    def run(self, slots: list[int], flushes: int) -> tuple[int, list[float]]:
        launch, clock = self._launch, time.perf_counter
        times: list[float] = []
        for arguments in [self._arguments[slot] for slot in slots]:
            start = clock()
            code = launch(*arguments)
            times.append((clock() - start) * 1e3)
            if code != 0:
                return code, times
        return 0, times

    @staticmethod
    def _allocate(nbytes: int) -> int:
        """Anonymous memory that ends at an inaccessible page."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        size = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = libc.mmap(None, ctypes.c_size_t(size + _GUARD_PAGES), 0, flags, -1, ctypes.c_long(0))
        if address in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"no room for a workspace of {nbytes} bytes")
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE) != 0:
            raise MemoryError(f"no room for a workspace of {nbytes} bytes")
        return int(address)


class CudaKernel:
    """A ``.cu`` kernel on device memory that the judge exported."""

    def __init__(
        self, library: ctypes.CDLL, base: int, driver: cuda.Driver, stream: cuda.Stream, gate: cuda.Gate | None
    ) -> None:
        self._launch = library.launch
        self._launch.restype = ctypes.c_int
        self._last_error = library.kernel_tui_last_error
        self._base, self._driver, self._stream, self._gate = base, driver, stream, gate
        self.workspace_bytes, self._workspace = _workspace(library, stream.allocate)
        self._arguments: dict[int, list[ctypes.c_void_p]] = {}

    def bind(self, slot: int, offsets: list[int]) -> None:
        addresses = [ctypes.c_void_p(self._base + offset) for offset in offsets]
        self._arguments[slot] = [*addresses, ctypes.c_void_p(self._workspace), self._stream.handle]

    def run_behind_gate(self, slots: list[int], number: int, tell: Callable[[bool], None]) -> int:
        """Queue calls that wait until the judge's gate is at ``number``, ``tell`` whether they are, wait for them.

        0, or the code of what failed.
        """
        if self._gate is None:
            tell(False)
            return 0
        self._gate.hold(self._stream, number)
        for slot in slots:
            if code := self._launch(*self._arguments[slot]):
                return int(code)
        tell(True)
        self._driver.synchronize()
        return int(self._last_error())

    def run(self, slots: list[int], flushes: int) -> tuple[int, list[float]]:
        """``flushes``: evict the L2 cache so often before each call, one event pair a call; 0: one pair around all."""
        launch, stream, calls = self._launch, self._stream, [self._arguments[slot] for slot in slots]
        times: list[float] = []
        if flushes:
            for arguments in calls:
                stream.flush(flushes)
                stream.start()
                code = launch(*arguments)
                stream.stop()
                self._driver.synchronize()
                if code or (code := self._last_error()):
                    return code, times
                times.append(stream.elapsed_ms())
            return 0, times
        stream.start()
        for arguments in calls:
            if code := launch(*arguments):
                return code, times
        stream.stop()
        self._driver.synchronize()
        if code := self._last_error():
            return code, times
        return 0, [stream.elapsed_ms() / len(calls)] * len(calls)


def _workspace(library: ctypes.CDLL, allocate: object) -> tuple[int, int]:
    try:
        size = library.workspace_bytes
    except AttributeError:
        return 0, 0
    size.restype = ctypes.c_size_t
    nbytes = int(size())
    if nbytes > _MOST_WORKSPACE_BYTES:  # in C such a number and a page more may be next to nothing
        raise MemoryError(f"no room for a workspace of {nbytes} bytes")
    return nbytes, allocate(nbytes) if nbytes else 0  # type: ignore[operator]


def map_arena(descriptor: int, size: int) -> int:
    """The judge's buffers in this process, with inaccessible pages on both sides: their address."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    reserved = libc.mmap(
        None, ctypes.c_size_t(size + 2 * _GUARD_PAGES), 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0)
    )
    address = libc.mmap(
        ctypes.c_void_p(reserved + _GUARD_PAGES),
        ctypes.c_size_t(size),
        protection,
        mmap.MAP_SHARED | mmap.MAP_POPULATE | _MAP_FIXED,
        descriptor,
        ctypes.c_long(0),
    )
    if address in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"cannot map the judge's buffers of {size} bytes")
    return int(address)


def main() -> int:
    control = socket.socket(fileno=int(sys.argv[1]))
    status_descriptor, kind, isolate = int(sys.argv[2]), sys.argv[3], sys.argv[4] == "1"
    isolation.die_with_parent()
    os.sched_setaffinity(0, map(int, sys.argv[5].split(",")))
    layers: list[str] = []
    base = 0
    if isolate:
        layers += isolation.enter_namespaces(status_descriptor)
    wire.send(control, {"hello": os.getpid()})
    request = wire.receive(control)
    if request is None:
        return 0
    order, (kernel_descriptor, arena_descriptor, *further) = request
    try:
        if kind == "cuda":
            driver = cuda.Driver()
            stream = cuda.Stream(driver)
            gate = cuda.gate_of(driver, further)
            base = driver.import_memory(arena_descriptor, order["arena_bytes"])
        elif order["arena_bytes"]:
            base = map_arena(arena_descriptor, order["arena_bytes"])
    except (OSError, MemoryError, cuda.CudaError) as error:
        wire.send(control, {"failed": "start", "text": str(error)})
        return 1
    layers += isolation.limit_resources(order["data_bytes"], file_descriptors=256)
    if isolate:
        layers += isolation.restrict_files(kind == "cuda")
        layers += isolation.restrict_calls(timers=kind == "cuda")
    wire.send(control, {"isolated": layers})
    try:
        library = ctypes.CDLL(f"/proc/self/fd/{kernel_descriptor}", mode=os.RTLD_NOW)
        kernel: CpuKernel | CudaKernel
        kernel = CudaKernel(library, base, driver, stream, gate) if kind == "cuda" else CpuKernel(library, base)
        for slot, offsets in enumerate(order["slots"]):
            kernel.bind(slot, offsets)
    except (OSError, AttributeError, MemoryError, cuda.CudaError) as error:
        wire.send(control, {"failed": "load", "text": str(error)})
        return 1
    wire.send(control, {"ready": True, "workspace_bytes": kernel.workspace_bytes})

    def tell(queued: bool) -> None:
        wire.send(control, {"queued": queued})

    while (request := wire.receive(control)) is not None:
        order, times = request[0], list[float]()
        try:
            if "gate" in order and isinstance(kernel, CudaKernel):
                code = kernel.run_behind_gate(order["slots"], order["gate"], tell)
            else:
                code, times = kernel.run(order["slots"], order["flushes"])
        except cuda.CudaError as error:
            wire.send(control, {"failed": "cuda", "text": str(error)})
            return 1
        wire.send(control, {"code": code, "ms": times})
    return 0


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    os._exit(exit_code)
