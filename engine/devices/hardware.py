"""Discover the hardware and read its load: NVIDIA GPUs through NVML, the CPU through psutil.

``discover`` lists the devices, and :class:`DeviceReader` reads their load. Neither raises an exception. Without a
driver, the list contains no GPUs. A value that a device does not report is None.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.devices.fact import DeviceFact
from engine.devices.nvml import as_text, driver
from engine.devices.sample import DeviceSample

CORES_PER_SM = {6: 128, 7: 64, 8: 128, 9: 128, 10: 128, 11: 128, 12: 128}
"""FP32 cores per streaming multiprocessor, by major compute capability. Exceptions: devices of compute capability 6.0
and 8.0 have 64 cores. NVML reports only the total number of cores. Source: CUDA C++ Programming Guide, "Compute
Capabilities".
"""

VECTOR_EXTENSIONS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "asimd", "sve", "sve2", "bf16"),
)
"""Vector extensions that matter to kernels, by their names in /proc/cpuinfo: first x86, then Arm."""

THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Bits of ``nvmlDeviceGetCurrentClocksEventReasons`` (nvml.h) that mean reduced speed. The table omits idle (0x1) and
clocks that a user set (0x2)."""


class DeviceReader:
    """Reader for the properties and the load of all devices.

    CPU utilization is the mean since the previous ``read``. ``cuda_absence`` explains why the list has no NVIDIA
    devices; None if the list has at least one.
    """

    def __init__(self) -> None:
        self._nvml = driver()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        uuids = visible_devices(list(self._nvml.handles), visible)
        self._handles = {uuid: self._nvml.handles[uuid] for uuid in uuids}
        self.cuda_absence = self._nvml.absence
        if self.cuda_absence is None and not self._nvml.handles:
            self.cuda_absence = "the NVIDIA driver lists no devices"
        elif self.cuda_absence is None and not self._handles:
            self.cuda_absence = f"CUDA_VISIBLE_DEVICES={visible} hides every device"
        import psutil

        psutil.cpu_percent(percpu=True)

    def discover(self) -> tuple[DeviceFact, ...]:
        """List the CUDA devices that ``CUDA_VISIBLE_DEVICES`` allows, then the CPU."""
        cuda = tuple(self._cuda_fact(uuid, handle) for uuid, handle in self._handles.items())
        return (*cuda, cpu_fact())

    def read(self) -> list[DeviceSample]:
        """Return one sample per device, in the order of ``discover``."""
        samples = [self._cuda_sample(uuid, handle) for uuid, handle in self._handles.items()]
        samples.append(cpu_sample())
        return samples

    def read_device(self, device: str) -> DeviceSample | None:
        """Return a sample of the device with this id, or None if the device is missing. Do not query other devices."""
        if device == "cpu":
            return cpu_sample()
        handle = self._handles.get(device)
        return self._cuda_sample(device, handle) if handle is not None else None

    def _cuda_fact(self, uuid: str, handle: Any) -> DeviceFact:
        nvml, ask = self._nvml.library, self._nvml.ask
        major, minor = ask(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle)) or (0, 0)
        memory = self._nvml.memory(uuid)
        lanes = ask(lambda: nvml.nvmlDeviceGetNumGpuCores(handle)) or 0
        per_sm = 64 if (major, minor) in ((6, 0), (8, 0)) else CORES_PER_SM.get(major, 128)
        return DeviceFact(
            id=uuid,
            kind="cuda",
            name=as_text(ask(lambda: nvml.nvmlDeviceGetName(handle)) or "NVIDIA device"),
            arch=cuda_arch(major, minor),
            memory_bytes=memory.total_bytes if memory is not None else 0,
            cores=lanes // per_sm,
            clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
        )

    def _cuda_sample(self, uuid: str, handle: Any) -> DeviceSample:
        nvml, ask = self._nvml.library, self._nvml.ask
        rates = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = self._nvml.memory(uuid)
        power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        limit = ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        reasons = ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
        return DeviceSample(
            device=uuid,
            kind="cuda",
            utilization=None if rates is None else float(rates.gpu),
            memory_used=None if memory is None else memory.total_bytes - memory.free_bytes,
            memory_total=None if memory is None else memory.total_bytes,
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            temperature_c=ask(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            memory_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
            throttle=tuple(name for bit, name in THROTTLE_REASONS.items() if reasons & bit),
            processes=self._nvml.processes(uuid),
        )


def visible_devices(uuids: list[str], visible: str | None) -> list[str]:
    """Filter and order ``uuids`` by the value of ``CUDA_VISIBLE_DEVICES``.

    The variable lists indices, UUIDs or prefixes of UUIDs. As in CUDA, the first entry without a match ends the list.
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
    """Return nvcc's target architecture. For Hopper and later, the target is architecture-specific (``sm_90a``), which
    enables instructions such as wgmma.
    """
    return f"sm_{major}{minor}a" if major >= 9 else f"sm_{major}{minor}"


def cpu_fact() -> DeviceFact:
    """Describe the CPU. ``cores`` counts the cores on which this process may run."""
    import psutil

    return DeviceFact(
        id="cpu",
        kind="cpu",
        name=_cpu_name(),
        arch=platform.machine(),
        memory_bytes=psutil.virtual_memory().total,
        cores=usable_cores(),
        features=_cpu_features(),
        caches=_cpu_caches(),
    )


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_sample() -> DeviceSample:
    """Read the CPU's load. Utilization is the mean since the previous reading."""
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
    """List the CUDA devices that this process may use, then the CPU."""
    return DeviceReader().discover()


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "CPU"


def _cpu_features() -> tuple[str, ...]:
    """Return the vector extensions in Linux's list of processor features."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                flags = set(line.partition(":")[2].split())
                return tuple(name for name in VECTOR_EXTENSIONS if name in flags)
    return ()


def _cpu_caches() -> tuple[str, ...]:
    """Return the sizes of core 0's data caches, from sysfs."""
    found = []
    for cache in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with suppress(OSError, ValueError):
            kind, level, size, sharing = (
                (cache / name).read_text().strip() for name in ("type", "level", "size", "shared_cpu_list")
            )
            kib = int(size.removesuffix("K"))
            words = f"L{level} {kib} KiB" if kib < 1024 else f"L{level} {kib / 1024:g} MiB"
            if kind != "Instruction":
                found.append(words if "," in sharing or "-" in sharing else f"{words} per core")
    return tuple(found)


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
