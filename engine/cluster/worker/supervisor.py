"""Join a host to a cluster: one worker process per device, restarted if it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from engine.cluster.certificates import CertificateError, faults
from engine.cluster.worker.process import WorkerSettings
from engine.devices.fact import DeviceFact
from engine.devices.hardware import discover
from engine.evaluation.build.compilers import compiler_of
from engine.evaluation.judge_process import how_it_ended
from engine.problem.spec import LANGUAGE_OF_DEVICE
from engine.system.python_process import python_command, python_path

AGAIN_S, LONGEST_S = 1.0, 60.0
"""Initial and maximum wait before a dead worker process starts again, in seconds. The wait doubles with each early
death.
"""
EARLY_S = 30.0
"""The death of a worker process counts as early if it comes within this many seconds of the start."""
STOP_S = 12.0
"""Time limit for a worker process to end its judges, in seconds."""


class NoDevice(Exception):
    """The host does not have the requested devices. The message lists its devices."""


def choose_devices(gpus: str) -> tuple[DeviceFact, ...]:
    """Return the devices that ``gpus`` names: "all", "none" (the CPU), or numbers such as "0,2".

    "all" means the CPU on a host without a GPU. Raises ``NoDevice`` if the host lacks a requested device, and
    ``NoCompiler`` if kernels for the devices cannot be built here.
    """
    found = discover()
    there = [device for device in found if device.kind == "cuda"]
    cpu = tuple(device for device in found if device.kind == "cpu")
    if gpus == "none" or (gpus == "all" and not there):
        chosen = cpu
    elif gpus == "all":
        chosen = tuple(there)
    else:
        numbers = [int(word) if word.strip().isdecimal() else -1 for word in gpus.split(",")]
        if any(not 0 <= number < len(there) for number in numbers):
            known = "; ".join(f"{number}: {device.name}" for number, device in enumerate(there)) or "no NVIDIA GPU"
            raise NoDevice(f"--gpus {gpus}: this host has {known}; use all, none, or numbers such as 0,1")
        chosen = tuple(there[number] for number in dict.fromkeys(numbers))
    compiler_of(LANGUAGE_OF_DEVICE[chosen[0].kind])
    return chosen


async def run_workers(
    devices: Sequence[DeviceFact], settings: WorkerSettings, builders: int, say: Callable[[str], None]
) -> None:
    """Run one worker process per device until SIGINT or SIGTERM.

    Args:
        devices: From :func:`choose_devices`.
        settings: The settings that the processes share. This function sets ``device`` and ``builders``.
        builders: Maximum number of concurrent builds on this host, divided among the devices.
        say: Called with one line per event.

    Raises:
        CertificateError: The worker's certificate is missing or invalid.
    """
    if found := faults(Path(settings.certificates), "worker"):
        raise CertificateError("; ".join(found))
    ended = asyncio.Event()
    for which in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(which, ended.set)
    share = max(1, builders // len(devices))
    await asyncio.gather(
        *(_keep(replace(settings, device=device.id, builders=share), device, ended, say) for device in devices)
    )


async def _keep(settings: WorkerSettings, device: DeviceFact, ended: asyncio.Event, say: Callable[[str], None]) -> None:
    pause_s = AGAIN_S
    while not ended.is_set():
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *python_command("engine.cluster.worker.process"),
            msgspec.json.encode(settings).decode(),
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": python_path()},
        )
        say(f"{settings.host}: the worker for {device.name} started (pid {process.pid})")
        running, stopped = asyncio.ensure_future(process.wait()), asyncio.ensure_future(ended.wait())
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running, STOP_S)
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # The guard then kills the worker's judges.
            return
        pause_s = min(LONGEST_S, 2 * pause_s) if time.monotonic() - began < EARLY_S else AGAIN_S
        how = how_it_ended(running.result())
        say(f"{settings.host}: the worker for {device.name} {how} and restarts in {pause_s:g} s")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), pause_s)
