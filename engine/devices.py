"""What the hardware is, and how it is doing: NVIDIA devices through NVML, the CPU through psutil.

``discover`` says which devices there are; ``read_samples`` gives one reading of each. Neither raises for a driver that
is missing or a figure that a device does not report: a device that is not there is not listed, a figure that is not
there is None. NVML starts no CUDA context, so a process that calls these may still fork. NVML and psutil are imported
where a device is read: a monitor that only types readings starts without them.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from engine.events import DeviceFact

T = TypeVar("T")

CORES_PER_SM = {6: 128, 7: 64, 8: 128, 9: 128, 10: 128, 11: 128, 12: 128}
"""FP32 lanes per streaming multiprocessor by major compute capability (CUDA C++ Programming Guide, "Compute
Capabilities"); 6.0 and 8.0 have 64. NVML reports lanes, not multiprocessors."""

THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Bits of ``nvmlDeviceGetCurrentClocksEventReasons`` (nvml.h) that cost speed; idle (0x1) and clocks set by a person
(0x2) do not."""


class DeviceProcess(Struct, frozen=True, omit_defaults=True):
    """A process that holds memory of a device. ``memory_bytes`` is None where the driver hides it."""

    pid: int
    memory_bytes: int | None = None


class DeviceSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reading of one device. ``device`` is the ``DeviceFact.id``. A figure that is not reported is None.

    ``utilization`` and ``cores`` (per core, CPU only) are percent, memory is bytes, power watts, temperature degrees
    Celsius, clocks MHz; ``throttle`` names what slows the device now; ``load`` is the one-minute load average.
    """

    device: str
    kind: Literal["cpu", "cuda"]
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle: tuple[str, ...] = ()
    processes: tuple[DeviceProcess, ...] = ()
    cores: tuple[float, ...] = ()
    load: float | None = None


class DeviceReader:
    """Reads devices again and again. CPU utilisation is the mean since the previous ``read``.

    ``cuda_absence`` says in words why there are no NVIDIA devices, or is None.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self.cuda_absence: str | None = self._open_nvml()
        import psutil

        psutil.cpu_percent(percpu=True)

    def discover(self) -> tuple[DeviceFact, ...]:
        """CUDA devices that this process may use (``CUDA_VISIBLE_DEVICES``), then the CPU."""
        cuda = tuple(self._cuda_fact(uuid, handle) for uuid, handle in self._handles.items())
        return (*cuda, cpu_fact())

    def read(self) -> list[DeviceSample]:
        """One sample per device, in the order of ``discover``."""
        samples = [self._cuda_sample(uuid, handle) for uuid, handle in self._handles.items()]
        samples.append(cpu_sample())
        return samples

    def _open_nvml(self) -> str | None:
        try:
            import pynvml
        except ImportError:
            return "nvidia-ml-py is not installed"
        try:
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            by_uuid = {_text(pynvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}
        except pynvml.NVMLError as error:
            return f"no NVIDIA driver: {error}"
        self._nvml = pynvml
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._handles = {uuid: by_uuid[uuid] for uuid in visible_devices(list(by_uuid), visible)}
        if not by_uuid:
            return "the NVIDIA driver lists no device"
        if not self._handles:
            return f"CUDA_VISIBLE_DEVICES={visible} hides every device"
        return None

    def _ask(self, call: Callable[[], T]) -> T | None:
        """The figure, or None where this device or driver does not report it."""
        with suppress(self._nvml.NVMLError, AttributeError):
            return call()
        return None

    def _cuda_fact(self, uuid: str, handle: Any) -> DeviceFact:
        nvml = self._nvml
        major, minor = self._ask(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle)) or (0, 0)
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        lanes = self._ask(lambda: nvml.nvmlDeviceGetNumGpuCores(handle)) or 0
        per_sm = 64 if (major, minor) in ((6, 0), (8, 0)) else CORES_PER_SM.get(major, 128)
        return DeviceFact(
            id=uuid,
            kind="cuda",
            name=_text(self._ask(lambda: nvml.nvmlDeviceGetName(handle)) or "NVIDIA device"),
            arch=cuda_arch(major, minor),
            memory_bytes=int(memory.total) if memory is not None else 0,
            cores=lanes // per_sm,
        )

    def _cuda_sample(self, uuid: str, handle: Any) -> DeviceSample:
        nvml, ask = self._nvml, self._ask
        rates = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        # The second version leaves out what the driver reserves, as nvidia-smi does.
        memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        limit = ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        reasons = ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
        return DeviceSample(
            device=uuid,
            kind="cuda",
            utilization=None if rates is None else float(rates.gpu),
            memory_used=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            temperature_c=ask(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            memory_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
            throttle=tuple(name for bit, name in THROTTLE_REASONS.items() if reasons & bit),
            processes=tuple(
                DeviceProcess(int(one.pid), one.usedGpuMemory)
                for one in ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
            ),
        )


def visible_devices(uuids: list[str], visible: str | None) -> list[str]:
    """Those of ``uuids`` that ``CUDA_VISIBLE_DEVICES`` allows, in its order.

    It names indices or (the beginning of) UUIDs; as in CUDA, the first entry that matches nothing ends the list.
    """
    if visible is None:
        return uuids
    chosen: list[str] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal() and int(entry) < len(uuids):
            found = uuids[int(entry)]
        else:
            matches = [uuid for uuid in uuids if entry.startswith("GPU-") and uuid.startswith(entry)]
            if len(matches) != 1:
                break
            found = matches[0]
        if found in chosen:
            break
        chosen.append(found)
    return chosen


def cuda_arch(major: int, minor: int) -> str:
    """What nvcc builds for: the architecture-specific target from Hopper on, so that wgmma and TMA are allowed."""
    return f"sm_{major}{minor}a" if major >= 9 else f"sm_{major}{minor}"


def cpu_fact() -> DeviceFact:
    """The CPU. ``cores`` are those that this process may run on."""
    import psutil

    return DeviceFact(
        id="cpu",
        kind="cpu",
        name=_cpu_name(),
        arch=platform.machine(),
        memory_bytes=psutil.virtual_memory().total,
        cores=usable_cores(),
    )


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_sample() -> DeviceSample:
    """A reading of the CPU; its utilisation is the mean since the previous one."""
    import psutil

    memory = psutil.virtual_memory()
    cores = tuple(psutil.cpu_percent(percpu=True))
    load: float | None = None
    with suppress(OSError):
        load = os.getloadavg()[0]
    return DeviceSample(
        device="cpu",
        kind="cpu",
        utilization=round(sum(cores) / len(cores), 1) if cores else None,
        memory_used=memory.total - memory.available,
        memory_total=memory.total,
        temperature_c=_cpu_temperature(),
        cores=cores,
        load=load,
    )


def discover() -> tuple[DeviceFact, ...]:
    """CUDA devices that this process may use, then the CPU."""
    return _shared_reader().discover()


def read_samples() -> list[DeviceSample]:
    """One reading of every device that ``discover`` lists, in its order."""
    return _shared_reader().read()


_reader: DeviceReader | None = None


def _shared_reader() -> DeviceReader:
    global _reader
    if _reader is None:
        _reader = DeviceReader()
    return _reader


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "CPU"


def _cpu_temperature() -> float | None:
    import psutil

    sensors = getattr(psutil, "sensors_temperatures", None)
    if sensors is None:
        return None
    with suppress(OSError, RuntimeError):
        readings = sensors()
        for chip in ("coretemp", "k10temp", "zenpower", "cpu_thermal"):
            if readings.get(chip):
                return max(float(one.current) for one in readings[chip])
    return None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def encode_samples(samples: list[DeviceSample]) -> str:
    """Readings of one moment as the session file's ``sample`` row holds them."""
    return msgspec.json.encode(samples).decode()


def decode_samples(json: str) -> list[DeviceSample]:
    """Raises ``msgspec.ValidationError`` for what is no list of readings."""
    return msgspec.json.decode(json, type=list[DeviceSample])
