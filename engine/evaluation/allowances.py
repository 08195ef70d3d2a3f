"""How long a kernel may take and how much memory, where the config does not say: by what its problem needs."""

from __future__ import annotations

from engine.evaluation.messages import JudgeSettings
from engine.evaluation.sandbox import Limits
from engine.problem.spec import ProblemSpec


def limits_of(problem: ProblemSpec, settings: JudgeSettings, eager_ms: float | None, module: bool) -> Limits:
    """A call may take a hundred times the reference, and three seconds at least. ``module``: of a ``.py`` kernel."""
    call_s = min(max(3.0, 0.1 * (eager_ms or 0.0)), settings.deadline_s)
    own = _module_memory_bytes if module else _memory_bytes
    return Limits(settings.deadline_s, call_s, settings.memory_bytes or own(problem, settings), settings.isolate)


def _memory_bytes(problem: ProblemSpec, settings: JudgeSettings) -> int:
    """What an honest kernel allocates, and some: thread stacks, its loaded modules."""
    return (256 << 20) + settings.threads * (16 << 20) + 2 * min(problem.floor_bytes, 1 << 30)


def _module_memory_bytes(problem: ProblemSpec, settings: JudgeSettings) -> int:
    """What PyTorch allocates for intermediate results of an honest ``forward``, and for CUDA on the host."""
    base = (8 << 30) if settings.kind == "cuda" else (1 << 30)
    return base + 8 * min(sum(tensor.nbytes for tensor in problem.tensors), 2 << 30)
