"""Whether there is room for a problem: a judge that asks for more memory than there is is killed, or others are."""

from __future__ import annotations

import contextlib
from pathlib import Path

from engine.evaluation.runner.wire import MOST_BUFFERS
from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec

_COPIES = 2
"""Every tensor lies in the judge at least twice: where kernels read and write it, and as it was drawn or expected."""
_MOST_TENSORS = MOST_BUFFERS // _COPIES


def lack_of_room(problem: ProblemSpec, device: DeviceFact) -> str | None:
    """Why ``problem`` cannot be opened on ``device``, None if it may fit."""
    if (count := len(problem.tensors)) > _MOST_TENSORS:
        return (
            f"too many tensors: {count:,} inputs, weights and outputs, and kernels can be handed {_MOST_TENSORS:,} at "
            "most; return fewer, for example stacked in one"
        )
    needed = _COPIES * sum(tensor.nbytes for tensor in problem.tensors)
    there = device.memory_bytes if device.kind == "cuda" else _available_bytes()
    if not there or needed <= there:
        return None
    where = device.name if device.kind == "cuda" else "this machine"
    return (
        f"not enough memory: its tensors need at least {_words(needed)} (each of them twice), and {where} has "
        f"{_words(there)}{'' if device.kind == 'cuda' else ' free'}; choose smaller sizes"
    )


def _available_bytes() -> int:
    """Of the machine, or of the control group that this process is in; 0 if unknown."""
    import psutil

    there = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            there = min(there, max(0, int(limit) - int((group / "memory.current").read_text())))
    return there


def _words(count: int) -> str:
    value, units = float(count), ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")
    for unit in units[:-1]:
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} {units[-1]}"
