"""A wait for memory is reported with its figures, and no deadline runs during the wait."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.devices.hardware import cpu_fact
from engine.evaluation.device_waits import DeviceWatch, Wait
from engine.evaluation.judge.messages import AwaitsMemory

DEVICE = replace(cpu_fact(), id=f"test-{os.getpid()}")


class Told:
    def __init__(self) -> None:
        self.waits: list[Wait] = []
        self.over: list[float] = []

    def on_free(self, device: DeviceFact, seconds: float) -> None:
        self.over.append(seconds)


@pytest.fixture
async def watched() -> AsyncIterator[tuple[DeviceWatch, Told]]:
    told = Told()
    watch = DeviceWatch(told.waits.append, told.on_free)
    watch.start([DEVICE])
    yield watch, told
    await watch.close()


async def test_no_deadline_runs_while_a_judge_waits_for_memory(watched: tuple[DeviceWatch, Told]) -> None:
    watch, told = watched
    lack = AwaitsMemory(needed_bytes=24 * 10**9, free_bytes=3 * 10**9, pid=os.getpid())
    with pytest.raises(TimeoutError):
        async with watch.wanted(DEVICE.id, 1.0, os.getpid()):
            watch.lacks_memory(DEVICE.id, lack)
            await asyncio.sleep(2.5)
            watch.lacks_memory(DEVICE.id, None)
            found_at = time.monotonic()
            await asyncio.sleep(1000)
    assert time.monotonic() - found_at > 0.3, "the deadline went on from there"
    assert [(wait.needed_bytes, wait.free_bytes, wait.pid) for wait in told.waits] == [
        (24 * 10**9, 3 * 10**9, os.getpid())
    ]
    assert told.waits[0].command and len(told.over) == 1 and told.over[0] > 1.5
    assert watch.waited_s > 1.5


async def test_a_holder_that_is_not_known_is_no_process(watched: tuple[DeviceWatch, Told]) -> None:
    watch, told = watched
    async with watch.wanted(DEVICE.id):
        watch.lacks_memory(DEVICE.id, AwaitsMemory(10**9, 0))
        await asyncio.sleep(2)
    assert [(wait.pid, wait.command) for wait in told.waits] == [(0, "")]
