"""What a call costs beside the kernel just now: a runner of the judge's own, whose kernel does nothing.

Stopping, waking and speaking to a process takes ten times as long while other virtual machines have the cores. So a
call of an empty kernel is made beside each pair, and a clock is doubted only for what is more than those calls took.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct, field

from engine.evaluation.build import NoCompiler, build, default_cache
from engine.evaluation.messages import JudgeSettings
from engine.evaluation.sandbox import Limits, Runner, RunnerEnded
from engine.evaluation.trials import JudgedProblem

_EMPTY = """\
extern "C" int kernel_tui_last_error() { return 0; }
extern "C" int launch() {
#pragma omp parallel
    asm volatile("" ::: "memory");
    return 0;
}
"""
"""On a CPU it wakes all threads, as kernels do; on a GPU it launches nothing. The C calling convention lets it ignore
whatever arguments ``launch`` has."""

_ROWS, _QUEUED = 3, 4
"""Rows of calls of an empty kernel, and times that one is queued, to learn what that costs; the least disturbed one
counts."""


class Control(Struct):
    """Calls of an empty kernel, milliseconds: processor time used, by the judge's clock beside the runner's, and
    processor time that its process was charged with between two calls, when it stood still."""

    used_ms: list[float] = field(default_factory=list)
    beside_ms: list[float] = field(default_factory=list)
    between_ms: list[float] = field(default_factory=list)

    def clear(self) -> None:
        for name in self.__struct_fields__:
            getattr(self, name).clear()

    def used_at(self, quantile: float) -> float:
        """0 where there were no calls."""
        return _at(self.used_ms, quantile)

    def beside_at(self, quantile: float) -> float:
        return _at(self.beside_ms, quantile)

    def between_at(self, quantile: float) -> float:
        return _at(self.between_ms, quantile)


class EmptyKernel:
    """An empty kernel on the buffers of a problem. It lives as long as the problem is open, and is started anew when
    it has come to an end."""

    def __init__(self, problem: JudgedProblem, settings: JudgeSettings) -> None:
        self._problem, self._settings = problem, settings
        self._runner: Runner | None = None
        self._answered_at_s: float | None = None
        self._gone = False
        """Whether there can be none: where nothing can be compiled."""

    @property
    def pid(self) -> int | None:
        """Of its process as seen here."""
        runner = self._running()
        return runner.pid if runner is not None else None

    def call(self, control: Control) -> None:
        """One call, as the judge calls any other kernel, added to ``control``; nothing where there is none."""
        if (runner := self._running()) is None:
            return
        before_s = runner.processor_s()
        try:
            slot = random.randrange(len(self._problem.arena.slots))
            own_ms, wall_ms = runner.call([slot], self._problem.device.flushes)
        except RunnerEnded:
            self.close()
            return
        if self._answered_at_s is not None:
            control.between_ms.append(1e3 * (before_s - self._answered_at_s))
        self._answered_at_s = runner.processor_s()
        control.used_ms.append(1e3 * (self._answered_at_s - before_s))
        control.beside_ms.append(wall_ms - own_ms[0])

    def row_ms(self, slots: Sequence[int]) -> float:
        """What each of the calls in a row on ``slots`` takes beside its own clock, milliseconds, in the least disturbed
        of some rows; 0 where there is no empty kernel."""
        if (runner := self._running()) is None:
            return 0.0
        try:
            rows = [runner.call(list(slots)) for _ in range(_ROWS)]
        except RunnerEnded:
            self.close()
            return 0.0
        return min(wall_ms - sum(own_ms) for own_ms, wall_ms in rows) / len(slots)

    def queue_ms(self) -> float | None:
        """What queued calls take beside their kernels (``Runner.call_behind_gate``), milliseconds, undisturbed: the
        GPU's change from one process to another is put off by up to two now and then. None where that is not known.
        """
        if (runner := self._running()) is None:
            return None
        try:
            tried = [runner.call_behind_gate([0], _nothing, self._problem.device.settle) for _ in range(_QUEUED)]
        except RunnerEnded:
            self.close()
            return None
        known = [one_ms for one_ms in tried if one_ms is not None]
        return min(known, default=None)

    def close(self) -> None:
        """End its process. Idempotent."""
        if self._runner is not None:
            self._runner.close()
            self._runner = self._answered_at_s = None

    def _running(self) -> Runner | None:
        if self._runner is None and not self._gone:
            library = _library()
            try:
                if library is not None:
                    self._runner = Runner(self._settings.kind, Limits(isolate=self._settings.isolate), lambda: False)
                    self._runner.load(library, self._problem)
            except RunnerEnded:
                self.close()
            self._gone = self._runner is None
        return self._runner


def _nothing() -> None:
    """An empty kernel has no inputs to load."""


def _at(values: list[float], quantile: float) -> float:
    return sorted(values)[int(quantile * len(values))] if values else 0.0


@cache
def _library() -> Path | None:
    try:
        path, _ = asyncio.run(build(_EMPTY, "cpp", "", "", default_cache(), defines="launch"))
    except (NoCompiler, OSError):
        return None
    return path
