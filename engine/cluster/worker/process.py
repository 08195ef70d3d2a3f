"""The process that joins one device to a cluster. The process waits for a scheduler that is not running yet, and
rejoins a scheduler that restarts.

``kernel-tui worker`` starts it as ``python -m engine.cluster.worker.process SETTINGS``. A guard kills the judging
processes if this process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import uuid
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from engine.cluster import dask_settings
from engine.cluster import messages as m
from engine.cluster.certificates import CertificateError, security
from engine.cluster.link import in_words
from engine.cluster.worker.toolchain import Toolchain, software
from engine.devices.hardware import discover
from engine.evaluation.sandbox.inside.confinement.isolation import die_with_parent
from engine.evaluation.sandbox.probe import describe, probe
from engine.evaluation.sandbox.runner import RunnerEnded
from engine.system.guard import VARIABLE, Guard

AGAIN_S = 2.0
"""Seconds between two attempts to join."""

_log = logging.getLogger("kernel-tui")


class WorkerSettings(Struct, frozen=True):
    """A device and the scheduler that it joins.

    ``device``: a GPU's UUID, or "cpu". ``host``: this host's name in the monitor.
    """

    scheduler: str
    certificates: str
    host: str
    device: str
    builders: int
    contact: str = ""


async def join(settings: WorkerSettings, guard: Guard | None) -> None:
    """Serve a device until SIGTERM or SIGINT. Raises ``CertificateError``."""
    encryption = security(Path(settings.certificates), "worker")
    dask_settings.apply()
    from engine.cluster.worker.plugin import JudgingHost

    environment = {"CUDA_VISIBLE_DEVICES": settings.device if settings.device != "cpu" else ""}
    os.environ |= environment
    found = {device.id: device for device in discover()}
    device = found.get(settings.device)
    if device is None:
        raise LookupError(f"this host has no device {settings.device}; its devices are {', '.join(found)}")
    toolchain = Toolchain(device)
    await toolchain.start()
    versions = await asyncio.to_thread(software, device)
    device = replace(device, id=f"{settings.host}/{device.id}", host=settings.host, software=versions)
    sandbox = await asyncio.to_thread(_sandbox)
    ended = asyncio.Event()
    for which in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(which, ended.set)
    said = ""
    while not ended.is_set():
        local = "cpu" if device.kind == "cpu" else "cuda:0"
        host = JudgingHost(device, local, environment, settings.builders, sandbox, toolchain.lacks, guard)
        trouble = await _serve(settings, host, encryption, ended)
        if ended.is_set():
            return
        if trouble != said:
            _log.warning("%s: %s; the worker tries to join every %g s", settings.scheduler, trouble, AGAIN_S)
            said = trouble
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), AGAIN_S)


async def _serve(settings: WorkerSettings, host: object, encryption: object, ended: asyncio.Event) -> str:
    """Join the scheduler, and serve until ``ended`` or until the connection breaks. Return what went wrong."""
    from distributed import Worker

    slots = 2 * settings.builders + 64  # Each connected engine's presence task occupies a slot, but uses no CPU.
    worker = Worker(
        settings.scheduler,
        nthreads=slots,
        resources={m.DEVICE: 1, m.BUILDER: settings.builders},
        security=encryption,
        protocol="tls",
        contact_address=settings.contact or None,
        name=f"{settings.host}/{settings.device}/{uuid.uuid4().hex[:8]}",
        plugins=[host],
        dashboard=False,
        dashboard_address="127.0.0.1:0",
        death_timeout=dask_settings.DEAD_S,
        local_directory=None,
        memory_limit=0,
        validate=False,
    )
    try:
        await asyncio.wait_for(worker, 2 * dask_settings.DEAD_S)
        _log.info("%s joined %s", settings.host, settings.scheduler)
        gone, stopped = asyncio.ensure_future(worker.finished()), asyncio.ensure_future(ended.wait())
        await asyncio.wait((gone, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        gone.cancel()
        return "the connection to the scheduler broke"
    except Exception as error:
        return f"cannot join: {in_words(error)}"
    finally:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(worker.close(nanny=False, reason="left"), dask_settings.DEAD_S)
        with contextlib.suppress(Exception):  # Dask does not call ``teardown`` if the worker never started.
            await host.teardown(worker)  # type: ignore[attr-defined]


def _sandbox() -> str:
    try:
        return describe(probe())
    except RunnerEnded as ended:
        return f"none ({ended})"


def main(settings: WorkerSettings) -> int:
    """Run the worker. Returns an exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", force=True)
    _log.setLevel(logging.INFO)
    die_with_parent()
    with contextlib.suppress(PermissionError):
        os.setsid()
    marker = uuid.uuid4().hex
    os.environ[VARIABLE] = marker
    guard = Guard(os.getpid() if os.getsid(0) == os.getpid() else 0, marker)
    try:
        asyncio.run(join(settings, guard))
    except (CertificateError, LookupError) as error:
        _log.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    os._exit(main(msgspec.json.decode(sys.argv[1], type=WorkerSettings)))
