"""The engine's side of one judge: a child process spoken to in JSON lines, restarted when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.child import end_group, end_what_it_leaves
from engine.evaluation import messages
from engine.evaluation.messages import AnyAnswer, AnyRequest, JudgeSettings
from engine.evaluation.sandbox import CORES_VARIABLE
from engine.events import Stage
from engine.workers.protocol import EvaluationError, JudgeDied, JudgeKilled
from engine.workers.waiting import DeviceWatch

_log = logging.getLogger(__name__)
_LINE_BYTES = 256 << 20
_START_S = 120.0
_CANCEL_S = 0.7
_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGQUIT}
"""How a process ends that did nothing wrong itself."""
_ROOT = Path(__file__).parents[2]


class JudgeSilent(EvaluationError):
    """It gave no answer in time."""


def how_it_ended(code: int) -> str:
    """In words, from the code that ``wait`` gives."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def child_environment(settings: JudgeSettings) -> dict[str, str]:
    """Equal threads and waiting for judge and runners: spinning threads of one would sit on the cores of the other.

    What a problem prints is there at once: a judge that is killed could print nothing that it has kept.
    """
    environment = dict(os.environ)
    environment |= {
        "OMP_NUM_THREADS": str(settings.threads),
        "MKL_NUM_THREADS": str(settings.threads),
        "OMP_WAIT_POLICY": "passive",
        "KMP_BLOCKTIME": "0",
        "GOMP_SPINCOUNT": "0",
        "PYTHONUNBUFFERED": "1",
        CORES_VARIABLE: ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": settings.device_id if settings.kind == "cuda" else "",
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    if settings.kind == "cpu":
        # Threads that stay where they are: two that are woken on one core make a kernel look half as fast, by luck.
        environment |= {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
    return environment


class JudgeProcess:
    """One judge on one device. Requests are one at a time; ``opened`` holds the problems that it knows.

    ``watch`` sees to it that no deadline runs while others hold the device.
    ``stderr``: descriptor for what the judge and its problems print, else this process's own; ``see``: where a person
    finds that, as the end of a sentence.
    """

    def __init__(
        self,
        settings: JudgeSettings,
        watch: DeviceWatch,
        stderr: int | None = None,
        see: str = "",
    ) -> None:
        self.settings = settings
        self._stderr = stderr
        self._see = see
        self._watch = watch
        self.opened: set[str] = set()
        self.torch_version = ""
        self._process: asyncio.subprocess.Process | None = None
        self._begun: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._reaper: asyncio.Task[None] | None = None
        self._death_told = False

    def begin(self) -> None:
        """Start the judge without waiting for it: the first request does, and raises what went wrong."""
        if self._process is None and self._begun is None:
            self._begun = asyncio.create_task(self._running())

    async def ask(self, request: AnyRequest, deadline_s: float, on_stage: Callable[[Stage], None]) -> AnyAnswer:
        """Send a request and wait for its answer; starts the judge where there is none.

        Cancelling the task cancels the request: the judge gets 0.7 s to say so, then it is killed. Raises
        ``EvaluationError`` when the judge dies, does not answer in time or could not carry out the request.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            await begun
        process = await self._running()
        assert process.stdin is not None
        process.stdin.write(messages.line(request))
        try:
            async with self._watch.wanted(self.settings.device_id, deadline_s, process.pid):
                answer = await self._answer(process, on_stage)
        except asyncio.CancelledError:
            await self._cancel(process)
            raise
        except TimeoutError:
            await self.stop()
            raise JudgeSilent(f"the judge did not answer within {deadline_s:g} s and was ended") from None
        if isinstance(answer, messages.Failed):
            raise EvaluationError(answer.reason, answer.variant)
        return answer

    async def stop(self) -> None:
        """End the judge and, through it, its runner. Idempotent."""
        begun = self._begun
        if begun is not None and begun is not asyncio.current_task():
            self._begun = None
            begun.cancel()  # which ends what it has started
            await asyncio.gather(begun, return_exceptions=True)
        process, self._process = self._process, None
        self.opened.clear()
        if process is None:
            return
        reaper, self._reaper = self._reaper, None
        if process.returncode is None:
            await end_group(process)  # a problem may have forked
            if reaper is not None:
                reaper.cancel()
        if reaper is not None:
            await asyncio.gather(reaper, return_exceptions=True)

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        if self._process is not None and not self._death_told:
            ended = how_it_ended(self._process.returncode or 0)
            _log.warning("the judge of %s %s between two requests; starting another", self.settings.device_name, ended)
        self.opened.clear()
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "engine.quickly",
            "engine.evaluation.judge",
            msgspec.json.encode(self.settings).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._stderr,
            env=child_environment(self.settings),
            limit=_LINE_BYTES,
            process_group=0,  # Ctrl-C in a terminal is for whoever asks; that one then ends the judge
        )
        self._death_told = False
        self._reaper = asyncio.create_task(end_what_it_leaves(process))
        try:
            async with self._watch.wanted(self.settings.device_id, _START_S, process.pid):
                ready = await self._answer(process, lambda stage: None)
        except TimeoutError:
            await self.stop()
            raise EvaluationError(f"the judge of {self.settings.device_name} did not start in {_START_S:g} s") from None
        except asyncio.CancelledError:
            await self.stop()
            raise
        if isinstance(ready, messages.Ready):
            self.torch_version = ready.torch
        return process

    async def _answer(self, process: asyncio.subprocess.Process, on_stage: Callable[[Stage], None]) -> AnyAnswer:
        assert process.stdout is not None
        while True:
            line = await process.stdout.readline()
            if not line.endswith(b"\n"):
                code = await process.wait()
                self.opened.clear()
                self._death_told = True
                ended = f"the judge of {self.settings.device_name} {how_it_ended(code)}"
                if code in _FROM_OUTSIDE:
                    raise JudgeKilled(f"{ended}: by somebody, or by the system for want of memory (dmesg says so)")
                raise JudgeDied(f"{ended}: the problem's own code runs in it and may end it{self._see}")
            try:
                answer = messages.decode_answer(line)
            except msgspec.MsgspecError as error:
                raise EvaluationError(f"the judge's answer cannot be read: {error}") from None
            match answer:
                case messages.AtStage(stage=stage):
                    on_stage(stage)
                case _:
                    return answer

    async def _cancel(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(messages.line(messages.Cancel()))
        try:
            await asyncio.wait_for(self._answer(process, lambda stage: None), _CANCEL_S)
        except (TimeoutError, EvaluationError, asyncio.CancelledError):
            await self.stop()
