"""What a call costs beside the kernel just now: a runner of the judge's own, whose kernel does nothing.

Stopping, waking and speaking to a process takes ten times as long while other virtual machines have the cores. A
kernel is not accused of what an empty one would be accused of at the same time.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
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
_LEAST_BESIDE, _BUDGET_BESIDE_S = 16, 6.0
"""Where each is made beside a pair: eight pairs of either order."""
_QUANTILE = 0.75


class Control(Struct, frozen=True):
    """Milliseconds that most calls of an empty kernel take: of processor time, and by the judge's clock."""

    used_ms: float = 0.0
    wall_ms: float = 0.0


def measure(
    problem: JudgedProblem,
    settings: JudgeSettings,
    cancelled: Callable[[], bool],
    beside: Callable[[], object] | None = None,
) -> Control:
    """Call an empty kernel as the judge calls any other, after the reference: a machine that is shared takes cores away
    from who has just used them. All zero where that cannot be done, and on a GPU.

    ``beside``: called before each of these calls, so that both see the same seconds of a machine whose costs change
    from one second to the next; what it raises is raised.
    """
    if settings.kind != "cpu" or (library := _library()) is None:
        return Control()
    used_ms, walls_ms = [], []
    least, budget_s = (_LEAST_CALLS, _BUDGET_S) if beside is None else (_LEAST_BESIDE, _BUDGET_BESIDE_S)
    with ExitStack() as stack:
        try:
            runner = stack.enter_context(Runner("cpu", Limits(isolate=settings.isolate), cancelled))
            runner.load(library, problem)
        except RunnerEnded:
            return Control()
        until = time.monotonic() + budget_s
        for index in range(_CALLS if beside is None else _CALLS + secrets.randbelow(_CALLS)):  # nobody can count on it
            if index >= least and time.monotonic() > until:
                break
            if beside is not None:
                beside()
            problem.time_reference(1)
            before_s = runner.processor_s()
            try:
                _, wall_ms = runner.call(index % len(problem.arena.slots))
            except RunnerEnded:
                return Control()
            used_ms.append(1e3 * (runner.processor_s() - before_s))
            walls_ms.append(wall_ms)
    return Control(*(sorted(each)[int(_QUANTILE * len(each))] for each in (used_ms, walls_ms)))


@cache
def _library() -> Path | None:
    try:
        path, _ = asyncio.run(build(_EMPTY, "cpp", "", "", default_cache(), defines="launch"))
    except (NoCompiler, OSError):
        return None
    return path
