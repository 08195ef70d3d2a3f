"""The engine's interface to one judge, a child process that exchanges JSON lines. If the judge dies, the engine
restarts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.devices.waiting_line import KeptProblems
from engine.evaluation.device_waits import DeviceWatch
from engine.evaluation.evaluator import EvaluationError, JudgeDied, JudgeKilled
from engine.evaluation.judge import messages
from engine.evaluation.judge.messages import AnyAnswer, AnyRequest, JudgeSettings
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.memory_errors import tells_of_no_memory
from engine.evaluation.sandbox.runner_process import CORES_VARIABLE
from engine.session.records.verdict import Stage
from engine.system.child import end_group, end_what_it_leaves
from engine.system.python_process import python_command, python_path

_log = logging.getLogger(__name__)
_LINE_BYTES = 256 << 20
_START_S = 120.0
_CANCEL_S = 0.7
_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGQUIT}
"""Exit codes of a judge that the user, another process or the out-of-memory killer ended with a signal."""


class JudgeSilent(EvaluationError):
    """A judge that did not answer in time."""


def how_it_ended(code: int) -> str:
    """Describe how a process with exit code ``code`` ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def child_environment(settings: JudgeSettings) -> dict[str, str]:
    """Return an environment that gives the judge and its runners the same thread count and wait policy.

    With different policies, one process's spinning threads would occupy the other's cores. A problem's output is
    unbuffered, because a killed judge could not flush a buffer.
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
        "PYTHONPATH": python_path(),
    }
    if settings.kind == "cpu":
        # Bind threads to cores. Otherwise, two threads may wake up on one core, which halves a kernel's speed at
        # random.
        environment |= {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
    return environment


def _has_lost_its_gpu(answer: AnyAnswer) -> bool:
    """Return whether the judge reports an error after which all of its work on the GPU fails. The function ignores an
    answer with a ``variant``, because the answer's reason quotes the kernel's own error.
    """
    if not isinstance(answer, messages.Failed) or answer.variant is not None:
        return False
    return "CUDA error" in answer.reason and not tells_of_no_memory(answer.reason)


class JudgeProcess:
    """One judge on one device, which serves one request at a time.

    ``opened``: the problems that the judge reopens when necessary. ``kept``: the problems that the judge has open now.

    ``builds``: the directory of this host's built kernels. ``watch``: suspends deadlines while other processes hold the
    device. ``stderr``: descriptor for the output of the judge and its problems, by default this process's standard
    error. ``see``: a clause that says where to find the output, such as "; see engine.log".
    """

    def __init__(
        self,
        settings: JudgeSettings,
        builds: Path,
        watch: DeviceWatch,
        stderr: int | None = None,
        see: str = "",
    ) -> None:
        self.settings = settings
        self._builds = builds
        self._stderr = stderr
        self._see = see
        self._watch = watch
        self.opened: set[str] = set()
        self.kept = KeptProblems(int(POLICY.device.problems_kept[settings.kind]))
        self.torch_version = ""
        self._process: asyncio.subprocess.Process | None = None
        self._begun: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._reaper: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._death_told = False

    def begin(self) -> None:
        """Start the judge and return at once. The first request waits until the judge has started, and raises any
        startup error.
        """
        if self._process is None and self._begun is None:
            self._begun = asyncio.create_task(self._running())

    async def ask(self, request: AnyRequest, deadline_s: float, on_stage: Callable[[Stage], None]) -> AnyAnswer:
        """Send a request and wait for the answer. Start the judge if necessary.

        Canceling the task cancels the request. The engine kills a judge that does not confirm the cancellation within
        ``_CANCEL_S`` seconds. Raises ``EvaluationError`` if the judge dies, exceeds the deadline or reports a failure.
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
            raise JudgeSilent(f"the judge did not answer within {deadline_s:g} s, so the engine ended it") from None
        if isinstance(answer, messages.Failed):
            if _has_lost_its_gpu(answer):
                await self.stop()
            raise EvaluationError(answer.reason, answer.variant)
        return answer

    def forget_problems(self) -> None:
        """Record that the judge has no open problems."""
        self.opened.clear()
        self.kept.clear()

    @property
    def running(self) -> bool:
        """Whether a judge process exists."""
        return self._process is not None and self._process.returncode is None

    async def stop(self) -> None:
        """End the judge and its runner. Idempotent."""
        begun = self._begun
        if begun is not None and begun is not asyncio.current_task():
            self._begun = None
            begun.cancel()  # Canceling also ends the judge's child processes.
            await asyncio.gather(begun, return_exceptions=True)
        process, self._process = self._process, None
        self.forget_problems()
        if process is None:
            return
        reaper, self._reaper = self._reaper, None
        if process.returncode is None:
            await end_group(process)  # A problem's code may have forked.
            if reaper is not None:
                reaper.cancel()
        if reaper is not None:
            await asyncio.gather(reaper, return_exceptions=True)

    async def _running(self) -> asyncio.subprocess.Process:
        """Return the judge, and start it if necessary."""
        async with self._starting:  # Two requests must not start two judges.
            return await self._running_or_started()

    async def _running_or_started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        if self._process is not None and not self._death_told:
            ended = how_it_ended(self._process.returncode or 0)
            _log.warning(
                "the judge for %s %s between two requests; the engine is starting another judge",
                self.settings.device_name,
                ended,
            )
        self.forget_problems()
        self._process = process = await asyncio.create_subprocess_exec(
            *python_command("engine.system.fast_start", "engine.evaluation.judge.start"),
            msgspec.json.encode(self.settings).decode(),
            str(self._builds),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._stderr,
            env=child_environment(self.settings),
            limit=_LINE_BYTES,
            process_group=0,  # Ctrl-C in a terminal goes to the engine, which then ends the judge.
        )
        self._death_told = False
        self._reaper = asyncio.create_task(end_what_it_leaves(process))
        try:
            async with self._watch.wanted(self.settings.device_id, _START_S, process.pid):
                ready = await self._answer(process, lambda stage: None)
        except TimeoutError:
            await self.stop()
            raise EvaluationError(
                f"the judge for {self.settings.device_name} did not start within {_START_S:g} s; to find the cause, "
                f"run kernel-tui doctor"
            ) from None
        except asyncio.CancelledError:
            await self.stop()
            raise
        if isinstance(ready, messages.Ready):
            self.torch_version = ready.torch
        return process

    async def _answer(self, process: asyncio.subprocess.Process, on_stage: Callable[[Stage], None]) -> AnyAnswer:
        """Wait for the answer to the request, and return the answer. During the wait, handle progress messages."""
        try:
            return await self._next_answer(process, on_stage)
        finally:
            self._watch.lacks_memory(self.settings.device_id, None)

    async def _next_answer(self, process: asyncio.subprocess.Process, on_stage: Callable[[Stage], None]) -> AnyAnswer:
        assert process.stdout is not None
        while True:
            line = await process.stdout.readline()
            if not line.endswith(b"\n"):
                code = await process.wait()
                self.forget_problems()
                self._death_told = True
                ended = f"the judge for {self.settings.device_name} {how_it_ended(code)}"
                if code in _FROM_OUTSIDE:
                    raise JudgeKilled(
                        f"{ended}: another process killed it, or the system ran out of memory (see dmesg)"
                    )
                raise JudgeDied(
                    f"{ended}: the problem's own code runs in the judge and may have ended this process{self._see}"
                )
            try:
                answer = messages.decode_answer(line)
            except msgspec.MsgspecError as error:
                raise EvaluationError(
                    f"the engine cannot read the judge's answer: {error}; report this as a bug"
                ) from None
            match answer:
                case messages.AtStage(stage=stage):
                    on_stage(stage)
                case messages.AwaitsMemory():
                    self._watch.lacks_memory(self.settings.device_id, answer)
                case messages.MemoryFound():
                    self._watch.lacks_memory(self.settings.device_id, None)
                case _:
                    return answer

    async def _cancel(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(messages.line(messages.Cancel()))
        try:
            if _has_lost_its_gpu(await asyncio.wait_for(self._answer(process, lambda stage: None), _CANCEL_S)):
                await self.stop()
        except (TimeoutError, EvaluationError, asyncio.CancelledError):
            await self.stop()
