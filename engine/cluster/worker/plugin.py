"""The Dask plugin of a worker, which passes orders to judging processes and sends heartbeats.

The worker process itself does not judge kernels, because a busy worker would miss its heartbeats (distributed#6324,
#6148).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec
from distributed import Worker, WorkerPlugin, get_worker
from msgspec.structs import replace

from engine.cluster import messages as m
from engine.devices.fact import DeviceFact
from engine.devices.hardware import DeviceReader
from engine.system.child import end_group
from engine.system.guard import Guard
from engine.system.python_process import python_command, python_path

STUCK_S = 10.0
"""Seconds without a heartbeat after which a judging process counts as stuck."""
CANCEL_S = 3.0
"""Seconds in which a judging process must confirm a cancellation. Otherwise, the worker kills it."""
IDLE_S = 1800.0
"""Seconds without an order after which a judging process ends, in case the worker never received its engine's presence
task.
"""
_LINE_BYTES = 64 << 20
_CLOSE_S = 5.0

_log = logging.getLogger("kernel-tui")


async def carry_out(order: bytes) -> None:
    """The Dask task, which answers with a report, never with an exception or a result (distributed#5958, #7870)."""
    worker = get_worker()
    plugin: JudgingHost = worker.plugins[m.PLUGIN]
    await plugin.carry_out(order)


class _Child:
    """One judging process, which serves one engine. ``attempts``: orders without a final report."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.attempts: dict[str, asyncio.Future[m.AnyFinal]] = {}
        self.heard_at = self.used_at = time.monotonic()
        self.reading: asyncio.Task[None] | None = None


class JudgingHost(WorkerPlugin):  # type: ignore[misc]
    """Serve orders for one device.

    - ``device``: the device, with an id that is unique in the cluster
    - ``local_device``: the name that a local evaluator uses for the device, such as ``cuda:0``
    - ``environment``: variables for judging processes, such as ``CUDA_VISIBLE_DEVICES``
    - ``lacks``: why this host cannot judge, or ""
    - ``guard``: kills the judging processes if this process is killed
    """

    name = m.PLUGIN

    def __init__(
        self,
        device: DeviceFact,
        local_device: str,
        environment: dict[str, str],
        builders: int,
        sandbox: str,
        lacks: Callable[[], str],
        guard: Guard | None,
    ) -> None:
        self._device, self._local_device, self._environment = device, local_device, environment
        self._builders, self._sandbox, self._lacks, self._guard = builders, sandbox, lacks, guard
        self._reader = DeviceReader()
        self._children: dict[str, _Child] = {}
        self._starting = asyncio.Lock()
        self._of: dict[str, _Child] = {}
        self._present: dict[str, tuple[str, asyncio.Event]] = {}
        """Connected engines, by their presence tasks."""
        self._start = f"{time.time():.3f}"
        self._tasks: list[asyncio.Task[None]] = []
        self._cancelled: set[str] = set()

    async def setup(self, worker: Worker) -> None:
        self._worker = worker
        self._tasks = [asyncio.create_task(self._beat())]

    async def teardown(self, worker: Worker) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            worker.log_event(m.BEATS, m.encode(m.Leaving(self._device.id, self._start)).decode())
        await asyncio.gather(*(self._end(child) for child in list(self._children.values())))

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Cancel an attempt when its engine releases the task or ends. Dask itself only marks the task. Without this
        method, the task would continue (distributed#4694, #2617, #3681) and keep its resources (#2106).
        """
        ended = finish in ("cancelled", "released", "forgotten")
        if ended and key in self._present:
            self._present[key][1].set()
        if ended and key in self._of:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks.append(asyncio.get_running_loop().create_task(self._cancel(str(key))))

    # Orders

    async def carry_out(self, encoded: bytes) -> None:
        """Carry out an order, and send the final report."""
        order = m.decode_order(encoded)
        answer: m.AnyFinal
        if isinstance(order.work, m.Presence):
            await self._accompany(order)
            return
        try:
            answer = await self._asked(order)
        except asyncio.CancelledError:  # The worker is shutting down, so the engine needs no report.
            return
        except BaseException as error:  # Otherwise, Dask would never complete the task.
            answer = m.Failed(f"the worker failed: {type(error).__name__}: {error}", host=True)
        self._tell(order.engine, order.attempt, answer)

    async def _accompany(self, order: m.Order) -> None:
        """Wait until the engine releases this task, exits, or loses its connection to the scheduler. Then end the
        engine's judging processes.
        """
        gone = asyncio.Event()
        self._present[order.attempt] = order.engine, gone
        try:
            await gone.wait()
        finally:
            del self._present[order.attempt]
            if all(engine != order.engine for engine, _ in self._present.values()):
                mine = [child for key, child in self._children.items() if key.startswith(f"{order.engine} ")]
                await asyncio.gather(*(self._end(child) for child in mine))

    async def _asked(self, order: m.Order) -> m.AnyFinal:
        async with self._starting:  # Two orders of a new engine must not start two processes.
            child = await self._child_for(order)
        answer: asyncio.Future[m.AnyFinal] = asyncio.get_running_loop().create_future()
        child.attempts[order.attempt] = answer
        self._of[order.attempt] = child
        try:
            self._send(child, m.Perform(order))
            return await answer
        finally:
            child.used_at = time.monotonic()
            del child.attempts[order.attempt], self._of[order.attempt]
            self._cancelled.discard(order.attempt)

    async def _child_for(self, order: m.Order) -> _Child:
        key = f"{order.engine} {msgspec.json.encode(order.evaluation, order='deterministic').decode()}"
        child = self._children.get(key)
        if child is not None and child.process.returncode is None:
            return child
        evaluation = {**order.evaluation, "device": self._local_device, "builders": self._builders}
        process = await asyncio.create_subprocess_exec(
            *python_command("engine.cluster.worker.judging_process"),
            msgspec.json.encode(evaluation).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **self._environment, "PYTHONPATH": python_path()},
            limit=_LINE_BYTES,
            process_group=0,
        )
        child = self._children[key] = _Child(process)
        child.reading = asyncio.create_task(self._read(child, order.engine))
        return child

    def _forget(self, child: _Child) -> None:
        """Stop sending orders to a judging process."""
        self._children = {key: one for key, one in self._children.items() if one is not child}

    async def _read(self, child: _Child, engine: str) -> None:
        """Forward the reports of a judging process until it ends or sends an unreadable report."""
        assert child.process.stdout is not None
        ended = (
            f"the judging process on {self._device.host} ended unexpectedly; read the worker's output for the reason"
        )
        try:
            while (line := await child.process.stdout.readline()).endswith(b"\n"):
                child.heard_at = time.monotonic()
                report = m.decode_report(line)
                if isinstance(report.answer, m.Alive):
                    continue
                answer = child.attempts.get(report.attempt)
                if not isinstance(report.answer, m.FINAL):
                    self._tell(engine, report.attempt, report.answer)
                elif answer is not None and not answer.done():
                    answer.set_result(report.answer)
        except (ValueError, msgspec.MsgspecError) as error:  # ``readline`` raises ValueError for a long line.
            ended = f"the judging process on {self._device.host} sent an unreadable report: {error}"
        finally:
            self._forget(child)
            await end_group(child.process)
            for answer in child.attempts.values():
                if not answer.done():
                    answer.set_result(m.Failed(ended, host=True))

    async def _cancel(self, attempt: str) -> None:
        child = self._of.get(attempt)
        if child is None or attempt in self._cancelled:
            return
        self._cancelled.add(attempt)
        self._send(child, m.Cancel(attempt))
        answer = child.attempts[attempt]
        await asyncio.wait((answer,), timeout=CANCEL_S)
        if not answer.done():
            _log.warning("the worker killed a judging process that ignored a cancellation")
            self._forget(child)
            await end_group(child.process)

    async def _end(self, child: _Child) -> None:
        """End a judging process: close its input, and kill its group if it does not end."""
        self._forget(child)
        assert child.process.stdin is not None
        child.process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.process.wait(), _CLOSE_S)
        await end_group(child.process)
        if child.reading is not None:
            await asyncio.wait((child.reading,), timeout=_CLOSE_S)

    def _send(self, child: _Child, message: m.AnyInward) -> None:
        assert child.process.stdin is not None
        child.process.stdin.write(m.encode(message) + b"\n")

    # Reports

    def _tell(self, engine: str, attempt: str, answer: m.AnyAnswer) -> None:
        match answer:  # The judging process uses the host's own id for the device.
            case m.Judged(verdict=verdict):
                answer = m.Judged(replace(verdict, host=self._device.host, device_id=self._device.id))
            case m.Waits(wait=wait):
                answer = m.Waits(replace(wait, device=self._device))
            case m.WaitEnded(seconds=seconds):
                answer = m.WaitEnded(seconds, self._device.id)
        self._worker.log_event(m.topic_of(engine), m.encode(m.Report(attempt, answer)).decode())

    async def _beat(self) -> None:
        """Send a heartbeat every second, and check the judging processes."""
        while True:
            with contextlib.suppress(Exception):  # The next heartbeat may succeed.
                self._look_after_children()
                if self._guard is not None:
                    self._guard.ensure()
                self._worker.log_event(m.BEATS, m.encode(self._now()).decode())
            await asyncio.sleep(m.BEAT_S)

    def _look_after_children(self) -> None:
        now = time.monotonic()
        for child in list(self._children.values()):
            if not child.attempts and now - child.used_at > IDLE_S:
                self._tasks.append(asyncio.create_task(self._end(child)))
        for attempt in (*self._of, *self._present):
            state = self._worker.state.tasks.get(attempt)
            if state is None or state.state in ("cancelled", "released"):
                self.transition(attempt, "executing", "cancelled")

    def _now(self) -> m.Beat:
        now, local_id = time.monotonic(), self._device.id.partition("/")[2]
        sample = self._reader.read_device(local_id)
        stuck = (attempt for attempt, child in self._of.items() if now - child.heard_at > STUCK_S)
        return m.Beat(
            address=self._worker.address,
            start=self._start,
            version=m.version(),
            torch=m.torch_version(),
            device=self._device,
            builders=self._builders,
            sandbox=self._sandbox,
            lacks=self._lacks(),
            sample=replace(sample, device=self._device.id) if sample is not None else None,
            running=tuple(self._of),
            stuck=tuple(stuck),
        )
