"""Track waits while another process uses a device or its memory, or while a signal has stopped our own process.

During a wait, suspend deadlines and report the process that is using the device.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec import Struct

from engine.devices.fact import DeviceFact
from engine.evaluation.judge.lock_owner import held_since, keeper_of, known_as
from engine.evaluation.judge.messages import AwaitsMemory
from engine.system.child import is_suspended

NOTICED_S = 1.0
"""Seconds after which the watch reports a wait. Searches that take turns on a device usually wait for less time."""
_LOOK_S = 0.25
_AGAIN_S = 10.0
"""Minimum seconds between two reports about different processes during one wait."""
_STOPPED = "kernel-tui's own process, stopped by a signal; to resume it: kill -CONT {0}; to end it: kill -9 {0}"


class Wait(Struct, frozen=True):
    """A wait of ``seconds`` for ``device``, held by the process ``pid`` since ``held_since``.

    ``held_since`` is in Unix seconds, or None if unknown. ``command``: the command of ``pid``, or "" if unknown.

    If ``needed_bytes`` is not 0, the wait is for that much memory, and only ``free_bytes`` are free. In that case,
    ``pid`` is the process that uses the most memory, or 0 if unknown.
    """

    device: DeviceFact
    pid: int
    command: str
    held_since: float | None
    seconds: float
    needed_bytes: int = 0
    free_bytes: int = 0


class _Device:
    """One device's state.

    ``limits``: the deadlines of our requests for the device, each with the process that serves the request, if any.
    """

    def __init__(self, fact: DeviceFact) -> None:
        self.fact = fact
        self.limits: dict[asyncio.Timeout, int | None] = {}
        self.memory: AwaitsMemory | None = None
        self.waits_since: float | None = None
        self.told: int | None = None
        self.told_at = 0.0


class DeviceWatch:
    """Poll to find which processes hold the devices that this process and its children have requested.

    The watch calls ``on_wait`` after a wait of one second, and again when another process takes the device. At the end
    of each reported wait, the watch calls ``on_free`` with the wait's length in seconds.
    """

    def __init__(self, on_wait: Callable[[Wait], None], on_free: Callable[[DeviceFact, float], None]) -> None:
        self._on_wait, self._on_free = on_wait, on_free
        self._devices: dict[str, _Device] = {}
        self._task: asyncio.Task[None] | None = None
        self._over_s = 0.0

    def start(self, devices: Sequence[DeviceFact]) -> None:
        self._devices = {device.id: _Device(device) for device in devices}
        self._task = asyncio.create_task(self._watch())

    @property
    def waited_s(self) -> float:
        """Total length of all reported waits, in seconds."""
        now = time.monotonic()
        waits = (one.waits_since for one in self._devices.values() if one.told is not None)
        return self._over_s + sum(now - since for since in waits if since is not None)

    @contextlib.asynccontextmanager
    async def wanted(self, device: str, limit_s: float | None = None, pid: int | None = None) -> AsyncIterator[None]:
        """Register a request for ``device``. Raises ``TimeoutError`` after ``limit_s`` seconds.

        The limit excludes the time during which other processes held the device or a signal had stopped our process
        ``pid``.
        """
        async with asyncio.timeout(limit_s) as limit:
            one = self._devices[device]
            one.limits[limit] = pid
            try:
                yield
            finally:
                del one.limits[limit]

    def lacks_memory(self, device: str, lack: AwaitsMemory | None) -> None:
        """Record that our judge is waiting for memory on ``device``, or that the wait is over if ``lack`` is None."""
        self._devices[device].memory = lack

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            for device in self._devices.values():
                self._look(device, now, now - looked_at)
            looked_at = now

    def _look(self, device: _Device, now: float, passed_s: float) -> None:
        stopped = next((pid for pid in device.limits.values() if pid is not None and is_suspended(pid)), None)
        pid = stopped or (keeper_of(device.fact.id, os.getpid()) if device.limits else None)
        lack = device.memory if pid is None else None
        if lack is not None:
            pid = lack.pid
        if pid is None:
            if device.told is not None and device.waits_since is not None:
                self._over_s += now - device.waits_since
                self._on_free(device.fact, now - device.waits_since)
            device.waits_since = device.told = None
            return
        if device.waits_since is None:
            device.waits_since = now
            return
        for limit in device.limits:
            if (when := limit.when()) is not None:
                limit.reschedule(when + passed_s)
        changed = pid != device.told and (device.told is None or now - device.told_at > _AGAIN_S)
        if changed and now - device.waits_since >= NOTICED_S:
            device.told, device.told_at = pid, now
            seconds = now - device.waits_since
            if stopped is not None:
                self._on_wait(Wait(device.fact, pid, _STOPPED.format(pid), time.time() - seconds, seconds))
                return
            if lack is not None:
                shown, command = known_as(pid) if pid else (0, "")
                self._on_wait(Wait(device.fact, shown, command, None, seconds, lack.needed_bytes, lack.free_bytes))
                return
            shown, command = known_as(pid)
            self._on_wait(Wait(device.fact, shown, command, held_since(device.fact.id), seconds))
