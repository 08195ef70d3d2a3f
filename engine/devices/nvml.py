"""Query GPUs through NVIDIA's management library (NVML): free memory, and the processes that occupy memory.

NVML does not create a CUDA context, so a process that uses NVML can still fork. ``driver`` imports ``pynvml`` on first
use.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from engine.devices.sample import DeviceProcess
from engine.system.memory import Memory

T = TypeVar("T")


class Nvml:
    """The NVIDIA driver. ``handles`` maps UUIDs to GPUs. ``absence`` explains why NVML is unavailable; None if NVML
    is available.
    """

    def __init__(self) -> None:
        self.handles: dict[str, Any] = {}
        self.library: Any = None
        self.absence = self._open()

    def _open(self) -> str | None:
        try:
            import pynvml
        except ImportError:
            return "nvidia-ml-py is not installed"
        try:
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            self.handles = {as_text(pynvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}
        except pynvml.NVMLError as error:
            return f"no NVIDIA driver: {error}"
        self.library = pynvml
        return None

    def ask(self, call: Callable[[], T]) -> T | None:
        """Run an NVML query; return None if this device or driver does not support the query."""
        with suppress(self.library.NVMLError, AttributeError):
            return call()
        return None

    def memory(self, uuid: str) -> Memory | None:
        """A GPU's memory; None if the GPU is unknown or the driver reports no value."""
        if (handle := self.handles.get(uuid)) is None:
            return None
        nvml = self.library
        # Version 2 of this query excludes the driver's reserved memory, as nvidia-smi does.
        found = self.ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        return Memory(int(found.total) - int(found.used), int(found.total)) if found is not None else None

    def processes(self, uuid: str) -> tuple[DeviceProcess, ...]:
        """Processes that occupy a GPU's memory."""
        if (handle := self.handles.get(uuid)) is None:
            return ()
        found = self.ask(lambda: self.library.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
        return tuple(DeviceProcess(int(one.pid), one.usedGpuMemory) for one in found)


@cache
def driver() -> Nvml:
    """Open the driver once per process."""
    return Nvml()


def as_text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
