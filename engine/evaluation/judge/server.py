"""The judge: a device's only trusted process. The judge owns the reference, inputs, expected outputs and clock.

``start.py`` starts the judge with the arguments SETTINGS and CACHE. The judge serves one request at a time
(``engine.evaluation.judge.messages``), with exclusive use of the device. CACHE is the directory for this host's built
kernels. The process exits when its standard input closes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import select
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeGuard

import msgspec
import torch
from msgspec.structs import replace

from engine.devices.nvml import driver
from engine.evaluation.build.build_cache import BuildCache, Built, first_error
from engine.evaluation.build.kernel_source import KernelSource
from engine.evaluation.correctness import native
from engine.evaluation.correctness.comparison import Tolerances
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.correctness.trivial_outputs import try_trivial_outputs
from engine.evaluation.judge import messages, verdicts
from engine.evaluation.judge.admission import Need, need_of
from engine.evaluation.judge.device_lock import alone, asking_for_memory
from engine.evaluation.judge.device_turns import Turns, largest_holder
from engine.evaluation.judge.messages import AnyAnswer, AnyRequest, JudgeSettings
from engine.evaluation.judge.problem_context import ProblemContext
from engine.evaluation.judge_device import JudgeDevice
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.memory_errors import tells_of_no_memory
from engine.evaluation.sandbox.inside.confinement.isolation import die_with_parent
from engine.evaluation.sandbox.runner import RunnerEnded
from engine.evaluation.timing import runoff_timing, speed_of_light
from engine.evaluation.timing.baselines import time_eager
from engine.evaluation.timing.speed_of_light import Peaks
from engine.problem.source import ProblemFileError
from engine.problem.spec import DeviceKind
from engine.session.records.verdict import BuildReport, Stage
from engine.system.memory import Memory, host_memory

_ADMISSION = POLICY.admission


class NotBuilt(Exception):
    """A kernel that compiled earlier, possibly on another host, but does not compile here.

    The message is one sentence.
    """


class Judge:
    """Serve requests. ``requests`` and ``answers`` are file descriptors; ``memory`` reads the device's memory."""

    def __init__(
        self,
        settings: JudgeSettings,
        builds: BuildCache,
        requests: int,
        answers: int,
        memory: Callable[[], Memory] | None = None,
    ) -> None:
        self._settings, self._builds = settings, builds
        self._memory = memory or (_gpu_memory if settings.kind == "cuda" else host_memory)
        self._requests, self._answers = requests, answers
        self._pid = os.getpid()
        self._buffer = b""
        self._cancelled = False
        self._tolerances = Tolerances(settings.tolerance_fp32, settings.tolerance_other)
        self._device = JudgeDevice(settings.kind, settings.threads)
        if settings.kind == "cpu":
            native.prepare()
        self._peaks = Peaks(self._device, settings.bandwidth_gbs, settings.peak_gflops)
        self._specs: dict[str, messages.OpenProblem] = {}
        self._opened: OrderedDict[str, ProblemContext] = OrderedDict()

    def serve(self) -> None:
        self._answer(messages.Ready(str(torch.__version__)))
        turns = Turns(self._settings, self, self._memory, self._answer, self._poll_cancelled)
        while (request := self._next_when_idle(turns)) is not None:
            self._cancelled = False
            if isinstance(request, messages.Cancel):
                continue
            answer = turns.take(request, self._carry_out)
            # Send the answer after releasing the device, because a stopped engine may never read it.
            self._answer(answer)

    def _carry_out(self, request: AnyRequest) -> AnyAnswer:
        try:
            match request:
                case messages.Measure():
                    self._peaks = Peaks(self._device, request.bandwidth_gbs, request.peak_gflops)
                    return messages.Measured(self._peaks.bandwidth_gbs, self._peaks.gflops)
                case messages.OpenProblem():
                    self._specs[request.problem.id] = request
                    if (before := self._opened.pop(request.problem.id, None)) is not None:
                        before.close()
                    return self._open(request)
                case messages.JudgeKernel():
                    library, report = self._built(request.kernel)
                    opened = self._problem(request.problem)
                    verdict = verdicts.judge(opened, library, report, self._on_stage, self._poll_cancelled)
                    return messages.Judged(replace(verdict, flags=(*verdict.flags, *opened.flags)))
                case messages.TimeRunoff():
                    libraries = {name: self._built(kernel)[0] for name, kernel in request.kernels.items()}
                    opened = self._problem(request.problem)
                    return messages.RunoffTimed(runoff_timing.run_runoff(opened, libraries, self._poll_cancelled))
                case messages.Evict():
                    self.close_problems()
                    return messages.Evicted()
            return messages.Failed(f"unknown request {request}")
        except runoff_timing.FoundOut as found:
            return messages.Failed(str(found), found.variant)
        except (RunnerEnded, NotBuilt) as error:
            return messages.Failed(str(error))
        except ProblemFileError as error:
            return messages.Failed(f"{error}; {error.hint}")
        except Exception as error:
            traceback.print_exc()
            return messages.Failed(_lack_of_memory(error) or _one_line(error))
        except SystemExit as error:
            if os.getpid() != self._pid:
                raise  # A process forked by the problem must exit instead of judging.
            traceback.print_exc()
            return messages.Failed(f"the problem's own code called sys.exit({error.code!r}); remove that call")

    def _open(self, request: messages.OpenProblem) -> messages.ProblemOpened:
        self._close_oldest()
        judged = JudgedProblem(request.problem, self._device, self._settings.trials, self._tolerances)
        try:
            return self._measure(request, judged)
        except BaseException:
            judged.close()  # Exported memory is not freed automatically.
            raise

    def _close_oldest(self) -> None:
        """Close the least recently used problems to make room for another problem."""
        most, least = int(POLICY.device.problems_kept[self._settings.kind]), POLICY.device.problems_least
        while len(self._opened) >= most or (len(self._opened) >= least and self._opened_take_much()):
            self._opened.popitem(last=False)[1].close()
            if self._device.cuda:
                gc.collect()  # A model may contain reference cycles.
                torch.cuda.empty_cache()

    def _opened_take_much(self) -> bool:
        """Return whether the open problems use more than their share of the GPU's memory."""
        if not self._device.cuda:
            return False
        held_bytes = int(torch.cuda.memory_reserved())
        held_bytes += sum(one.judged.arena.nbytes + one.reference_process.held_bytes for one in self._opened.values())
        return held_bytes > POLICY.device.problems_share * self._memory().total_bytes

    def _measure(self, request: messages.OpenProblem, judged: JudgedProblem) -> messages.ProblemOpened:
        eager = time_eager(judged)
        judged.prepare()
        sol_ms = request.sol_ms or speed_of_light.sol_ms(request.problem, self._device, self._peaks, self._tolerances)
        self._specs[request.problem.id] = replace(request, sol_ms=sol_ms)
        eager_ms = eager.timing.median_ms if eager.timing is not None else None
        degenerate = try_trivial_outputs(judged, self._tolerances)
        opened = ProblemContext(judged, self._settings, self._builds.directory, eager_ms, sol_ms, degenerate)
        opened.prepare()
        self._opened[request.problem.id] = opened
        return messages.ProblemOpened(eager, sol_ms, degenerate)

    def _built(self, kernel: KernelSource) -> tuple[Path, BuildReport]:
        """Return the kernel's library. Usually, a builder on this host has already built the library; otherwise, build
        the library now.

        Raises ``NotBuilt``.
        """
        found: Built = self._builds.find(kernel) or asyncio.run(self._builds.build(kernel))
        if found.library is None:
            raise NotBuilt(f"the kernel does not build on the judging host: {first_error(found.report)}")
        return found.library, found.report

    def _problem(self, name: str) -> ProblemContext:
        if name not in self._opened:
            self._open(self._specs[name])
        self._opened.move_to_end(name)
        return self._opened[name]

    # Memory: the methods of ``MemoryUser``

    def need(self, request: AnyRequest) -> Need:
        kind: DeviceKind = "cuda" if self._device.cuda else "cpu"
        match request:
            case messages.OpenProblem():
                problem = request.problem
            case messages.JudgeKernel() | messages.TimeRunoff() if request.problem in self._specs:
                problem = self._specs[request.problem].problem
            case messages.Measure():
                return need_of(None, kind)
            case _:
                return Need(0, 0, 0)
        need = need_of(problem, kind)
        # An open problem already has its buffers, and its set of checks is fixed.
        return replace(need, full_bytes=need.least_bytes) if self._is_open(request) else need

    def held_bytes(self, request: AnyRequest) -> int:
        if not self._is_open(request):
            return 0
        if not self._device.cuda:
            return self.need(request).least_bytes
        arena_bytes = self._opened[request.problem].judged.arena.nbytes
        return (
            int(torch.cuda.memory_reserved()) + arena_bytes + _ADMISSION.context_bytes
        )  # The empty kernel's process is already running.

    def has_other_problems(self, request: AnyRequest) -> bool:
        return len(self._opened) > self._is_open(request)

    @property
    def evictable_bytes(self) -> int:
        if not self._device.cuda:
            return 0
        found = int(torch.cuda.memory_reserved())
        found += sum(one.reference_process.held_bytes for one in self._opened.values())
        return found if found >= _ADMISSION.idle * self._memory().total_bytes else 0

    def evict(self) -> None:
        for context in self._opened.values():
            context.evict()
        if self._device.cuda:
            torch.cuda.empty_cache()

    def close_problems(self) -> bool:
        found = bool(self._opened)
        while self._opened:
            self._opened.popitem()[1].close()
        gc.collect()  # A model may contain reference cycles.
        if self._device.cuda:
            torch.cuda.empty_cache()
        return found

    def _is_open(self, request: AnyRequest) -> TypeGuard[messages.JudgeKernel | messages.TimeRunoff]:
        return isinstance(request, messages.JudgeKernel | messages.TimeRunoff) and request.problem in self._opened

    # Requests of the engine

    def _next_when_idle(self, turns: Turns) -> AnyRequest | None:
        """Return the next request. While waiting, release memory if other judges ask for it."""
        while self._opened and not self._buffer and not self._has_request(_ADMISSION.look_s):
            turns.give_back_when_asked()
        return self._next()

    def _has_request(self, within_s: float = 0.0) -> bool:
        return bool(select.select([self._requests], [], [], within_s)[0])

    def _next(self) -> messages.AnyRequest | None:
        while b"\n" not in self._buffer:
            chunk = os.read(self._requests, 1 << 20)
            if not chunk:
                return None
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return messages.decode_request(line)

    def _poll_cancelled(self) -> bool:
        """Return whether the engine has cancelled the request in progress."""
        if not self._cancelled and self._has_request():
            self._cancelled = not isinstance(self._next(), messages.OpenProblem)
        return self._cancelled

    def _on_stage(self, stage: Stage) -> None:
        self._answer(messages.AtStage(stage))

    def _answer(self, answer: AnyAnswer) -> None:
        write_answer(self._answers, answer)


def write_answer(descriptor: int, answer: AnyAnswer) -> None:
    data = messages.line(answer)
    while data:
        data = data[os.write(descriptor, data) :]


def _gpu_memory() -> Memory:
    """Return the visible GPU's memory. Free memory excludes this process's PyTorch cache."""
    return Memory(*map(int, torch.cuda.mem_get_info()))


def _await_a_context(device: str, tell: Callable[[AnyAnswer], None]) -> None:
    """Wait until the GPU has enough free memory for this process's CUDA context.

    The function reads the free memory from the driver, because a process cannot retry after it has failed to create a
    context.
    """
    asked_at_s: float | None = None
    while (memory := driver().memory(device)) is not None and memory.free_bytes < _ADMISSION.context_bytes:
        tell(messages.AwaitsMemory(_ADMISSION.context_bytes, memory.free_bytes, largest_holder(device, os.getppid())))
        if asked_at_s is None or time.monotonic() - asked_at_s > _ADMISSION.ask_again_s:
            asked_at_s = time.monotonic()
            with alone(device, lambda: False), asking_for_memory(device):
                time.sleep(_ADMISSION.ask_s)
        else:
            time.sleep(_ADMISSION.look_s)
    if asked_at_s is not None:
        tell(messages.MemoryFound())


def _lack_of_memory(error: Exception) -> str | None:
    """Describe ``error`` in one sentence if it reports a lack of memory. Otherwise, return None."""
    text = " ".join(str(error).split())
    if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not tells_of_no_memory(text):
        return None
    asked = re.search(r"tried to allocate ([\d.]+ ?\w+)", text)
    what = f" (it requested {asked.group(1)})" if asked is not None else ""
    return f"the problem needs more memory than the device has{what}; choose smaller sizes"


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"


def main(memory: Callable[[], Memory] | None = None, has_context: Callable[[], bool] = lambda: False) -> int:
    """Run the judge.

    ``memory``: replaces the function that reads the device's memory. ``has_context``: waits for the attempt to create a
    CUDA context, and returns whether it succeeded.
    """
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)  # Only a problem's code forks.
    settings = msgspec.json.decode(sys.argv[1], type=JudgeSettings)
    # A problem's output must not mix with the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    # An existing context already uses its memory, so waiting for that memory might never end.
    if settings.kind == "cuda" and not has_context():
        _await_a_context(settings.device_id, lambda answer: write_answer(answers, answer))
    Judge(settings, BuildCache(Path(sys.argv[2]), settings.isolate), 0, answers, memory).serve()
    return 0
