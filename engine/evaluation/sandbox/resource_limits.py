"""Limits on a kernel's time and memory, and their defaults for a problem.

Threat: resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from engine.evaluation.judge_policy import POLICY

if TYPE_CHECKING:
    from engine.evaluation.judge.messages import JudgeSettings
    from engine.problem.spec import ProblemSpec

_SANDBOX = POLICY.sandbox


class Limits(Struct, frozen=True):
    """A runner's limits. The defaults are the limits of the judge's empty kernel.

    ``start_s``: timeout for each answer while the runner starts and loads the kernel. ``call_s``: timeout for the
    answer to a call. ``data_bytes``: private memory in addition to the initial memory; 0 means unlimited.
    """

    start_s: float = _SANDBOX.empty_start_s
    call_s: float = _SANDBOX.empty_call_s
    data_bytes: int = 0
    isolate: bool = True


def limits_of(problem: ProblemSpec, settings: JudgeSettings, eager_ms: float | None, module: bool) -> Limits:
    """Return the default limits of one kernel.

    ``module``: whether the kernel is a ``.py`` kernel, whose results PyTorch allocates.
    """
    call_s = max(_SANDBOX.call_s, _SANDBOX.call_per_eager * (eager_ms or 0.0) / 1e3)
    if module:
        needed = min(sum(tensor.nbytes for tensor in problem.tensors), _SANDBOX.python_per_problem_most_bytes)
        memory_bytes = _SANDBOX.python_memory_bytes[settings.kind] + _SANDBOX.python_per_problem * needed
    else:
        needed = min(problem.sol_bytes, _SANDBOX.per_problem_most_bytes)
        memory_bytes = _SANDBOX.memory_bytes + _SANDBOX.per_problem * needed
    memory_bytes = settings.memory_bytes or int(memory_bytes) + settings.threads * _SANDBOX.thread_bytes
    return Limits(settings.deadline_s, min(call_s, settings.deadline_s), memory_bytes, settings.isolate)
