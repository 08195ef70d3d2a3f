"""Waiting for devices that other processes hold, or a process of ours that a signal has stopped: who has them, since
when, and that no deadline runs meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec import Struct

from engine.evaluation.holder import held_since, is_suspended, keeper_of, known_as
from engine.events import DeviceFact

NOTICED_S = 1.0
"""A wait that has lasted so long is told. Searches that take turns on a device mostly wait for less."""
_LOOK_S = 0.25
_AGAIN_S = 10.0
"""Another holder of the same wait is told only so long after the one before: there may be many who take turns."""
_STOPPED = "our own, stopped by a signal: kill -CONT {0} lets it go on, kill -9 {0} gives it up"


class Wait(Struct, frozen=True):
    """``device`` is held by the process ``pid``, whose command is ``command`` ("" if unknown), since ``held_since``
    (Unix seconds, None if unknown); it has been waited for ``seconds``."""

    device: DeviceFact
    pid: int
    command: str
    held_since: float | None
    seconds: float


class _Device:
    """What is known of one device. ``limits``: of everything of ours that wants it now, with the process that works
    there for it, if there is one yet."""

    def __init__(self, fact: DeviceFact) -> None:
        self.fact = fact
        self.limits: dict[asyncio.Timeout, int | None] = {}
        self.waits_since: float | None = None
        self.told: int | None = None
        self.told_at = 0.0


class DeviceWatch:
    """Looks now and then who holds the devices that this process and its children want.

    ``on_wait`` is told of a wait of a second, and again where somebody else holds the device; ``on_free``, for every
    wait that was told, of its seconds when it is over.
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
        """Seconds of all told waits so far."""
        now = time.monotonic()
        waits = (one.waits_since for one in self._devices.values() if one.told is not None)
        return self._over_s + sum(now - since for since in waits if since is not None)

    @contextlib.asynccontextmanager
    async def wanted(self, device: str, limit_s: float | None = None, pid: int | None = None) -> AsyncIterator[None]:
        """Something wants ``device`` or has it. Raises ``TimeoutError`` after ``limit_s`` without those in which others
        had it, or in which the process ``pid``, our own, was stopped by a signal."""
        async with asyncio.timeout(limit_s) as limit:
            one = self._devices[device]
            one.limits[limit] = pid
            try:
                yield
            finally:
                del one.limits[limit]

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
            shown, command = known_as(pid)
            self._on_wait(Wait(device.fact, shown, command, held_since(device.fact.id), seconds))
