"""A worker and its judging processes, with Dask inside the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
from distributed import Client, Scheduler, Worker

from engine.cluster import messages as m
from engine.cluster.worker import plugin
from engine.config.schema import EvaluationConfig
from engine.devices.fact import DeviceFact
from engine.system.python_process import python_command

EVALUATION = EvaluationConfig().model_dump(mode="json", exclude={"device", "builders"})


class Engine:
    """Sends orders to a worker, and receives the final reports."""

    def __init__(self, client: Any, host: plugin.JudgingHost) -> None:
        self.client, self.host = client, host
        self._answers: dict[str, asyncio.Future[m.AnyAnswer]] = {}
        client.subscribe_topic(m.topic_of("engine"), self._hear)

    def send(self, attempt: str, work: m.AnyWork) -> Any:
        order = m.Order(attempt, "engine", EVALUATION, work)
        self._answers[attempt] = asyncio.get_running_loop().create_future()
        return self.client.submit(plugin.carry_out, m.encode(order), key=attempt, pure=False)

    async def ask(self, attempt: str, work: m.AnyWork) -> m.AnyAnswer:
        task = self.send(attempt, work)
        answer = await asyncio.wait_for(self._answers[attempt], 60)
        del task
        return answer

    def _hear(self, event: tuple[float, str]) -> None:
        report = m.decode_report(event[1])
        if report.attempt in self._answers and not self._answers[report.attempt].done():
            self._answers[report.attempt].set_result(report.answer)


def judging_processes() -> list[psutil.Process]:
    module = "engine.cluster.worker.judging_process"
    found = []
    for one in psutil.Process().children():
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # of other tests
            if module in one.cmdline():
                found.append(one)
    return found


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[Engine]:
    """Run a scheduler and a worker, and connect to them."""
    device = DeviceFact("here/cpu", "cpu", "CPU", "x86_64", 1 << 30, 1, host="here")
    host = plugin.JudgingHost(device, "cpu", {}, 1, "", str, None)
    quiet = {"protocol": "inproc://", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    async with (
        Scheduler(**quiet) as scheduler,
        Worker(scheduler.address, nthreads=8, memory_limit=0, plugins=[host], **quiet),
        Client(scheduler.address, asynchronous=True, set_as_default=False) as client,
    ):
        yield Engine(client, host)


async def test_a_new_order_does_not_go_to_a_judging_process_that_is_closing() -> None:
    of_other_tests = judging_processes()
    async with served() as engine:
        presence = engine.send("presence", m.Presence())
        assert await engine.ask("1", m.Sleep(0)) == m.Done()
        (first,) = (one for one in judging_processes() if one not in of_other_tests)
        first.suspend()  # It cannot notice that its input closes.
        presence.release()
        while engine.host._present:  # noqa: ASYNC110 - a message of Dask ends it
            await asyncio.sleep(0.01)
        assert await engine.ask("2", m.Sleep(0)) == m.Done()
        assert set(judging_processes()) - {first, *of_other_tests}


async def test_a_report_that_cannot_be_read_fails_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_LINE_BYTES", 1 << 12)
    async with served() as engine:
        answer = await engine.ask("1", m.Sleep(0, "x" * (1 << 16)))
        assert isinstance(answer, m.Failed) and answer.host and "unreadable report" in answer.reason
        assert await engine.ask("2", m.Sleep(0, "x")) == m.Done("x")


def test_an_order_that_is_cancelled_at_once_is_answered() -> None:
    order = m.Order("1", "engine", EVALUATION, m.Sleep(60))
    both = m.encode(m.Perform(order)) + b"\n" + m.encode(m.Cancel("1")) + b"\n"
    command = [*python_command("engine.cluster.worker.judging_process"), m.encode(EVALUATION).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(both)
        process.stdin.flush()
        reports = (m.decode_report(process.stdout.readline()) for _ in range(20))
        assert any(one.attempt == "1" and one.answer == m.Failed("cancelled") for one in reports)
        process.stdin.close()
        assert process.wait(30) == 0
