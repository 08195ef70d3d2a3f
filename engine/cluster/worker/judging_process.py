"""A worker's child process, which judges kernels for one engine on one device with a local evaluator.

Its argument EVALUATION is the config's evaluation table as JSON. Orders arrive on standard input and reports leave on
standard output, one JSON line each. The process leads a process group, sends a heartbeat every second, and ends its
builders and judges when standard input closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from engine.cluster import messages as m
from engine.config.evaluation_table import EvaluationConfig
from engine.devices.fact import DeviceFact
from engine.evaluation.build.compilers import NoCompiler
from engine.evaluation.device_waits import Wait
from engine.evaluation.evaluator import EvaluationError, JudgeKilled
from engine.evaluation.local_evaluator import LocalEvaluator
from engine.problem.spec import ProblemSpec
from engine.session.records.verdict import Stage

_LINE_BYTES = 64 << 20


class JudgingProcess:
    """Serve orders until ``orders`` ends. All reports go to the descriptor ``reports``."""

    def __init__(self, evaluation: EvaluationConfig, scratch: Path, reports: int) -> None:
        self._reports = reports
        self._evaluator = LocalEvaluator(
            evaluation, scratch, on_wait=self._on_wait, on_free=self._on_free, stderr=sys.stderr.fileno()
        )
        self._device: DeviceFact | None = None
        self._why_not = ""
        self._specs: dict[str, ProblemSpec] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._starting: asyncio.Task[None] | None = None

    async def serve(self, orders: asyncio.StreamReader) -> None:
        beating = asyncio.create_task(self._beat())
        try:
            while (line := await orders.readline()).endswith(b"\n"):
                match m.decode_inward(line):
                    case m.Perform(order=order):
                        self._tasks[order.attempt] = asyncio.create_task(self._perform(order))
                        await asyncio.sleep(0)  # A task that is canceled before its first step would report nothing.
                    case m.Cancel(attempt=attempt):
                        if (task := self._tasks.get(attempt)) is not None:
                            task.cancel()
        finally:
            tasks = [beating, *self._tasks.values(), *([self._starting] if self._starting is not None else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._evaluator.close()

    async def _start(self) -> None:
        try:
            (self._device, *_) = await self._evaluator.start()
        except EvaluationError as error:
            self._why_not = str(error)
        except Exception as error:
            self._why_not = f"{type(error).__name__}: {error}"

    async def _beat(self) -> None:
        while True:
            self._tell("", m.Alive())
            await asyncio.sleep(m.BEAT_S)

    async def _perform(self, order: m.Order) -> None:
        """Carry out an order, and always report how it ended."""
        try:
            answer = await self._answer(order)
        except asyncio.CancelledError:
            answer = m.Failed("cancelled")
        except (NoCompiler, OSError, JudgeKilled) as error:
            answer = m.Failed(str(error), host=True)
        except EvaluationError as error:
            answer = m.Failed(str(error), error.variant)
        except BaseException as error:  # A task without an answer would never end.
            answer = m.Failed(f"{type(error).__name__}: {error}", host=True)
        self._tasks.pop(order.attempt, None)
        self._tell(order.attempt, answer)

    async def _answer(self, order: m.Order) -> m.AnyFinal:
        if isinstance(order.work, m.Sleep):  # This order measures the transport, so it needs no judge.
            await asyncio.sleep(order.work.seconds)
            return m.Done(order.work.payload)
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)  # Canceling one order must not cancel the start that all orders need.
        if self._device is None:
            return m.Failed(self._why_not, host=True)
        if order.peak_gflops is not None and self._device.peak_gflops is None:
            known = replace(self._device, bandwidth_gbs=order.bandwidth_gbs, peak_gflops=order.peak_gflops)
            self._device = await self._evaluator.measure_device(known)

        def on_stage(stage: Stage) -> None:
            self._tell(order.attempt, m.AtStage(stage))

        evaluator = self._evaluator
        match order.work:
            case m.Measure():
                device = self._device = await evaluator.measure_device(self._device)
                return m.Measured(device.bandwidth_gbs or 0.0, device.peak_gflops or 0.0)
            case m.Build(place=place, kernel=kernel):
                built = await evaluator.build(place.problem, place.header, kernel.language, kernel.source, on_stage)
                return m.Built(built)
            case m.Open(place=place):
                self._specs[place.problem.id] = place.problem
                return m.OpenedProblem(await evaluator.open(place.problem, place.header))
            case m.Judge(place=place, kernel=kernel):
                await self._open(place)
                verdict = await evaluator.evaluate(place.problem, kernel.language, kernel.source, on_stage)
                return m.Judged(verdict)
            case m.Runoff(place=place, kernels=kernels):
                await self._open(place)
                pairs = {name: (one.language, one.source) for name, one in kernels.items()}
                return m.RunoffTimed(await evaluator.runoff(place.problem, pairs))
            case m.Compile(place=place):
                return m.Compiled(await evaluator.compile_baseline(place.problem))
            case _:
                await evaluator.evict()
                return m.Done()

    async def _open(self, place: m.Place) -> None:
        """Open a problem in the judge, unless it is already open with the same definition."""
        if self._specs.get(place.problem.id) != place.problem:
            self._specs[place.problem.id] = place.problem
            try:
                await self._evaluator.open(place.problem, place.header)
            except BaseException:
                del self._specs[place.problem.id]
                raise

    def _on_wait(self, wait: Wait) -> None:
        self._tell("", m.Waits(wait))

    def _on_free(self, device: DeviceFact, seconds: float) -> None:
        self._tell("", m.WaitEnded(seconds))

    def _tell(self, attempt: str, answer: m.AnyAnswer) -> None:
        data = m.encode(m.Report(attempt, answer)) + b"\n"
        with contextlib.suppress(OSError):  # The worker died; standard input is closed too.
            while data:
                data = data[os.write(self._reports, data) :]


async def main(evaluation: dict[str, Any]) -> None:
    """Serve the orders on standard input until it closes."""
    reports = os.dup(1)
    os.dup2(2, 1)  # Output of libraries must not mix with the reports.
    orders = asyncio.StreamReader(limit=_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    config = EvaluationConfig.model_validate(evaluation)
    with tempfile.TemporaryDirectory(prefix="kernel-tui-worker-") as scratch:
        await JudgingProcess(config, Path(scratch), reports).serve(orders)


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1])))
    os._exit(0)  # A thread or process that never ends must not keep this process alive.
