"""What a call costs beside the kernel just now: a runner of the judge's own, whose kernel does nothing.

Stopping, waking and speaking to a process takes ten times as long while other virtual machines have the cores. A
kernel is not accused of what an empty one would be accused of at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from msgspec import Struct

from engine.evaluation.build import NoCompiler, build, default_cache
from engine.evaluation.messages import JudgeSettings
from engine.evaluation.sandbox import Limits, Runner, RunnerEnded
from engine.evaluation.trials import JudgedProblem

_EMPTY = """\
extern "C" int launch() {
#pragma omp parallel
    asm volatile("" ::: "memory");
    return 0;
}
"""
"""It wakes all threads, as kernels do. The C calling convention lets it ignore whatever arguments ``launch`` has."""
_CALLS, _LEAST_CALLS, _BUDGET_S = 24, 6, 0.6
_QUANTILE = 0.75


class Control(Struct, frozen=True):
    """Milliseconds that most calls of an empty kernel take: of processor time, and by the judge's clock."""

    used_ms: float = 0.0
    wall_ms: float = 0.0


def measure(problem: JudgedProblem, settings: JudgeSettings, cancelled: Callable[[], bool]) -> Control:
    """Call an empty kernel as the judge calls any other, after the reference: a machine that is shared takes cores away
    from who has just used them. All zero where that cannot be done, and on a GPU. Never raises.
    """
    if settings.kind != "cpu" or (library := _library()) is None:
        return Control()
    used_ms, walls_ms = [], []
    try:
        with Runner("cpu", Limits(isolate=settings.isolate), cancelled) as runner:
            runner.load(library, problem)
            until = time.monotonic() + _BUDGET_S
            for index in range(_CALLS):
                if index >= _LEAST_CALLS and time.monotonic() > until:
                    break
                problem.time_reference(1)
                before_s = runner.processor_s()
                _, wall_ms = runner.call(index % len(problem.arena.slots))
                used_ms.append(1e3 * (runner.processor_s() - before_s))
                walls_ms.append(wall_ms)
    except RunnerEnded:
        return Control()
    return Control(*(sorted(each)[int(_QUANTILE * len(each))] for each in (used_ms, walls_ms)))


@cache
def _library() -> Path | None:
    try:
        path, _ = asyncio.run(build(_EMPTY, "cpp", "", "", default_cache(), defines="launch"))
    except (NoCompiler, OSError):
        return None
    return path
