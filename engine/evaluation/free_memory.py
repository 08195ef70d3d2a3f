"""Check whether a problem fits on a device. A judge that exceeds the device's memory fails, or the system kills it."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.inside.wire import MOST_BUFFERS
from engine.problem.spec import ProblemSpec
from engine.system.memory import bytes_in_words, host_memory

_COPIES = POLICY.admission.copies


def lack_of_room(problem: ProblemSpec, device: DeviceFact) -> str | None:
    """Return why no judge can open ``problem`` on ``device``, or None if the problem may fit after other processes
    release memory.
    """
    most_tensors = MOST_BUFFERS // _COPIES
    if (count := len(problem.tensors)) > most_tensors:
        return (
            f"too many tensors: {count:,} inputs, weights and outputs exceed the limit of {most_tensors:,}; "
            "return fewer tensors, for example stacked into one"
        )
    needed = _COPIES * sum(tensor.nbytes for tensor in problem.tensors)
    there = device.memory_bytes if device.kind == "cuda" else host_memory().total_bytes
    if not there or needed <= there:
        return None
    where = device.name if device.kind == "cuda" else "this machine"
    return (
        f"not enough memory: the problem needs at least {bytes_in_words(needed)}, twice the size of its "
        f"tensors, but {where} has {bytes_in_words(there)}; choose smaller sizes"
    )
