"""Measure the overhead of a call with an empty kernel in a separate runner.

Stopping, waking and messaging a process takes ten times as long when other virtual machines use the cores. Therefore
the judge calls an empty kernel with each pair, and attributes only the remaining difference to the kernel's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from engine.evaluation.build.compilers import NoCompiler, build
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.resource_limits import Limits
from engine.evaluation.sandbox.runner import Runner, RunnerEnded

T = TypeVar("T")
_CLOCK = POLICY.clock
_EMPTY = """\
extern "C" int kernel_tui_last_error() { return 0; }
extern "C" int launch() {
#pragma omp parallel
    asm volatile("" ::: "memory");
    return 0;
}
"""
"""The empty kernel's source. On a CPU, the kernel wakes all threads, as other kernels do; on a GPU, the kernel launches
nothing.

C's calling convention lets ``launch`` ignore its arguments.
"""


class CallOverhead(Struct):
    """The overhead of empty calls: the judge's time minus the runner's time, in milliseconds."""

    beside_ms: list[float] = field(default_factory=list)

    def clear(self) -> None:
        self.beside_ms.clear()

    def beside_at(self, quantile: float) -> float:
        """Return a quantile of the overhead in milliseconds, or 0 if there are no calls."""
        return sorted(self.beside_ms)[int(quantile * len(self.beside_ms))] if self.beside_ms else 0.0


class EmptyKernel:
    """An empty kernel on a problem's buffers, built into the cache ``builds``.

    The kernel's process runs as long as the problem is open. If the process ends, the next measurement starts a new
    process.
    """

    def __init__(self, problem: JudgedProblem, settings: JudgeSettings, builds: Path) -> None:
        self._problem, self._settings, self._builds = problem, settings, builds
        self._runner: Runner | None = None
        self._no_compiler = False

    @property
    def pid(self) -> int | None:
        """The empty kernel's process id in the judge's PID namespace, or None if the kernel cannot run."""
        return self._ask(lambda runner: runner.pid)

    def call(self, overhead: CallOverhead) -> None:
        """Call the empty kernel once, like any other kernel, and add the call's overhead to ``overhead``."""
        slot, flushes = random.randrange(len(self._problem.arena.slots)), self._problem.device.flushes
        if (took := self._ask(lambda runner: runner.call([slot], flushes))) is not None:
            overhead.beside_ms.append(took[1] - took[0][0])

    def batch_overhead_ms(self, slots: Sequence[int]) -> float:
        """Return the overhead per call in the least disturbed batch, in milliseconds, or 0 if unknown."""
        batches = self._ask(lambda runner: [runner.call(list(slots)) for _ in range(_CLOCK.empty_batches)])
        return min((wall_ms - sum(own_ms) for own_ms, wall_ms in batches or ()), default=0.0) / len(slots)

    def queue_overhead_ms(self) -> float | None:
        """Return the time for queuing calls without disturbance (``Runner.call_behind_gate``) in milliseconds, or None
        if unknown.

        A GPU may switch between processes up to 2 ms late.
        """
        settle = self._problem.device.settle
        tried = self._ask(
            lambda runner: [runner.call_behind_gate([0], _nothing, settle) for _ in range(_CLOCK.empty_queued)]
        )
        return min((one_ms for one_ms in tried or () if one_ms is not None), default=None)

    def close(self) -> None:
        """End the process. Idempotent."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _ask(self, question: Callable[[Runner], T]) -> T | None:
        """Return the result of ``question``, or None if the empty kernel does not build or its process has ended."""
        try:
            if self._runner is None and not self._no_compiler:
                self._start()
            return question(self._runner) if self._runner is not None else None
        except RunnerEnded:
            self.close()
            return None

    def _start(self) -> None:
        library = None
        with contextlib.suppress(NoCompiler, OSError):
            library, _ = asyncio.run(build(_EMPTY, "cpp", "", "", self._builds, defines="launch"))
        self._no_compiler = library is None
        if library is not None:
            self._runner = Runner(self._settings.kind, Limits(isolate=self._settings.isolate), lambda: False)
            self._runner.load(library, self._problem)


def _nothing() -> None:
    """Load nothing, because an empty kernel has no inputs."""
