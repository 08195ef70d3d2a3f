"""Load, call and time any kernel on any device, in the kernel's own process.

This process contains no secrets, and the judge verifies all of its reports.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from engine.evaluation.sandbox.inside import cuda, wire
from engine.evaluation.sandbox.inside.backend import CpuBackend, make
from engine.evaluation.sandbox.inside.confinement import isolation

TYPE_CHECKING = False  # Importing typing takes milliseconds.
if TYPE_CHECKING:
    import socket
    from typing import Any

    from engine.evaluation.sandbox.inside.backend import Backend, Call

    Message = dict[str, Any]


class NotLoaded(Exception):
    """A kernel that the runner cannot load; the message gives the reason."""


class LaunchFailed(Exception):
    """A nonzero code from ``launch``, or an error that the device reported. The exception's argument is the code."""


class Kernel(ABC):
    """A way to load a kernel, bind it to the judge's buffers, and call it. ``kind``: "cpu" or "cuda"."""

    default_stream = False
    """Whether the kernel uses a GPU's default stream, as PyTorch does."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def prepare(self) -> None:  # noqa: B027 - a shared library needs nothing
        """Prepare for loading while this process still has all privileges."""

    def clock(self) -> Callable[[], float]:
        """Return the function that reads a CPU's clock, in seconds."""
        return time.perf_counter

    @abstractmethod
    def load(self, backend: Backend, kernel: int, base: int, order: Message) -> Message:
        """Load the kernel, and bind it to the judge's buffers at ``base``. Return the report for the judge.

        ``kernel``: the descriptor of the kernel's file. Raises ``NotLoaded``, and ``CudaError`` if the device fails.
        """

    @abstractmethod
    def bind(self, slots: Sequence[int]) -> Iterator[tuple[int, Sequence[Call]]]:
        """Bind one call for each of ``slots``, in groups that are as large as possible. Yield each group of calls and
        the slot of its last call.
        """

    def begin(self, seed: int | None) -> None:  # noqa: B027 - compiled kernels draw no random numbers
        """Prepare for calls. ``seed``: the kernel's random seed."""

    @abstractmethod
    def keep(self, slot: int, result: Any) -> None:
        """Keep the result of the last call on ``slot``. The device may still be running. Raises ``LaunchFailed``."""

    def failure(self, error: Exception) -> Message:
        """Return the answer to an order that failed with ``error``.

        If the kernel did not cause ``error``, raise ``error`` again.
        """
        raise error

    def carry_out(self, backend: Backend, order: Message, control: socket.socket) -> Message:
        """Execute an order from the judge, and return the answer."""
        if "launches" in order:
            self.begin(order["seed"])
            return {"launches": self.launches(backend, order["slots"][0])}
        if "gate" not in order:
            return self.time(backend, order, self.keep)
        self.queue(backend, order, control)
        return {}

    def time(self, backend: Backend, order: Message, keep: Callable[[int, Any], None]) -> Message:
        """Return ``ms``: the time that this process measured for each call on the order's ``slots``, in milliseconds.

        ``flushes``: number of cache evictions before each call. If 0, the calls in a group run back to back. ``seed``:
        the random seed. ``untimed``: the slots of the untimed calls before each timed call. Untimed calls make the next
        launch from Python faster. ``keep``: a function that receives the results.

        Raises ``LaunchFailed`` and whatever the kernel raises.
        """
        slots, flushes, seed, untimed = order["slots"], order["flushes"], order["seed"], order["untimed"]
        times_ms = list[float]()
        self.begin(seed)
        for part in [[slot] for slot in slots] if flushes else [slots]:
            for slot in untimed:
                self.begin(seed)
                keep(slot, self.call(slot))
            if untimed:
                backend.synchronize()  # Otherwise, a slow launch could overlap with the untimed work.
                self.begin(seed)
            for last, calls in self.bind(part):
                backend.flush(flushes)
                keep(last, backend.run(calls))
                times_ms += backend.times_ms()
        return {"ms": times_ms}

    def queue(self, backend: Backend, order: Message, control: socket.socket) -> None:
        """Queue calls behind the judge's gate, report whether they are queued, and wait for them to finish.

        Threat: clock. Raises ``LaunchFailed`` and whatever the kernel raises.
        """
        queued = backend.hold(order["gate"])
        if queued:
            self.begin(order["seed"])
            for slot in order["slots"]:
                self.keep(slot, self.call(slot))
        wire.send(control, {"queued": queued})
        backend.synchronize()

    def launches(self, backend: Backend, slot: int) -> list[Any]:
        """Return the GPU launches of one call on ``slot``."""
        return backend.launches(lambda: self.call(slot))

    def call(self, slot: int) -> Any:
        """Return the result of one untimed call."""
        return make(next(self.bind([slot]))[1])


def serve(control: socket.socket, isolate: bool, kernel: Kernel) -> int:
    """Drop privileges, load ``kernel``, and execute orders until the judge disconnects. Return the exit code."""
    layers = isolation.enter_namespaces(control, isolate)
    wire.send(control, {"hello": os.getpid()})
    if kernel.kind == "cuda":
        # A spare process initializes the driver long before its first order. Creating a context would slow the timing
        # of another kernel.
        cuda.begin()
    if (request := wire.receive(control)) is None:
        return 0
    order, (kernel_descriptor, arena, *gate) = request
    on_gpu, policy, compilers, stage = kernel.kind == "cuda", order["policy"], order["compilers"], "start"
    try:
        backend: Backend
        if on_gpu:
            backend = cuda.CudaBackend(policy["flush_bytes"], kernel.default_stream, gate)
        else:
            backend = CpuBackend(policy["guard_bytes"], kernel.clock)
        kernel.prepare()
        base = backend.map(arena, order["arena_bytes"]) if order["arena_bytes"] else 0
        os.close(arena)  # The kernel must not map this memory again.
        file_bytes = policy["compiled_file_bytes"] if compilers else 0
        layers += isolation.limit_resources(order["data_bytes"], policy["descriptors"], file_bytes)
        if isolate:
            layers += isolation.restrict_files(on_gpu, order["readable"], order["writable"])
            layers += isolation.restrict_calls(processes=compilers, timers=on_gpu)
        wire.send(control, {"isolated": layers})
        stage = "load"
        wire.send(control, {"ready": True} | kernel.load(backend, kernel_descriptor, base, order))
    except (NotLoaded, OSError, MemoryError, RuntimeError, cuda.CudaError) as error:
        failed = "cuda" if stage == "load" and isinstance(error, cuda.CudaError) else stage
        wire.send(control, {"failed": failed, "text": str(error)})
        return 1
    while (request := wire.receive(control)) is not None:
        try:
            answer = {"code": 0} | kernel.carry_out(backend, request[0], control)
        except LaunchFailed as failure:
            answer = {"code": failure.args[0]}
        except cuda.CudaError as error:
            wire.send(control, {"failed": "cuda", "text": str(error)})
            return 1
        except Exception as error:
            answer = kernel.failure(error)
        wire.send(control, answer)
    return 0
