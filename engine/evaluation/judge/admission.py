"""Decide how much device memory must be free before a judge starts a request, and when to retry. All functions are
pure.

Several judges may share a GPU with other users' jobs. If a judge starts a request while other processes occupy the
memory, the resulting failures look like errors in the kernel. Therefore the judge first compares the memory that the
request needs with the free memory.

If too little memory is free, the judge releases its memory, gives up its turn, and waits. A waiting judge occupies only
the memory of its CUDA context, so two judges never wait for each other. ``device_turns.py`` acts on these decisions.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from engine.evaluation.judge.messages import AnyAnswer, Failed, Judged
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.memory_errors import tells_of_no_memory
from engine.problem.spec import DTYPE_BYTES, DeviceKind, ProblemSpec
from engine.session.records.verdict import Verdict
from engine.system.memory import Memory, bytes_in_words

_ADMISSION = POLICY.admission


class Need(Struct, frozen=True):
    """The memory that a request needs, in bytes.

    ``full_bytes``: memory for all checks, including fp64. ``least_bytes``: estimated memory without the optional
    checks. ``must_bytes``: the memory without which the request certainly fails.
    """

    full_bytes: int
    least_bytes: int
    must_bytes: int


def need_of(problem: ProblemSpec | None, kind: DeviceKind) -> Need:
    """Return the memory needed to judge kernels of ``problem``, or to measure the device if there is no problem.

    On a CPU, the result includes only the mandatory memory. The judge needs little memory besides the tensors, and the
    system can swap.
    """
    if problem is None:
        return Need(*3 * [0]) if kind == "cpu" else Need(_ADMISSION.measure_bytes, _ADMISSION.context_bytes, 0)
    tensors = sum(tensor.nbytes for tensor in problem.tensors)
    if kind == "cpu":
        return Need(*3 * [_ADMISSION.copies * tensors])
    contexts = _ADMISSION.processes * _ADMISSION.context_bytes
    run = sum(tensor.nbytes for tensor in problem.outputs) + intermediate_bytes(problem)
    inputs, weights = (sum(tensor.nbytes for tensor in group) for group in (problem.inputs, problem.weights))
    # The sum covers one arena slot, the trials, two models, one model's draws, a run of that model, and a run of the
    # kernel.
    least = contexts + (1 + _ADMISSION.trials) * tensors + 2 * weights + inputs + 2 * run
    more = max(_ADMISSION.fp64 * tensors, _ADMISSION.spare * int(POLICY.device.slots_bytes["cuda"]))
    return Need(least + more, least, contexts + _ADMISSION.copies * tensors)


def intermediate_bytes(problem: ProblemSpec) -> int:
    """Return the peak memory of the reference's intermediate results, assuming that each operator allocates its output.

    The estimate is high, because views count as copies. Returns the outputs' bytes if tracing failed.
    """
    if problem.graph is None:
        return sum(tensor.nbytes for tensor in problem.outputs)
    last: dict[str, int] = {}
    for index, node in enumerate(problem.graph):
        for name in _names((*node.args, *node.kwargs.values())):
            last[name] = index
    held: dict[str, int] = {}
    most = 0
    for index, node in enumerate(problem.graph):
        if node.op in ("call", "getitem") and node.shape is not None and node.dtype in DTYPE_BYTES:
            held[node.name] = DTYPE_BYTES[node.dtype]
            for extent in node.shape:
                held[node.name] *= extent
        most = max(most, sum(held.values()))
        for name in [name for name in held if last.get(name, index) <= index]:
            del held[name]
    return most


def _names(value: object) -> Iterator[str]:
    """Yield the names of graph nodes that an argument refers to."""
    if isinstance(value, dict):
        if isinstance(value.get("ref"), str):
            yield value["ref"]
        for one in value.values():
            yield from _names(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _names(one)


def needed_bytes(need: Need, total_bytes: int, waited_s: float) -> int:
    """Return the memory that must be free now to start a request that has waited ``waited_s`` seconds.

    The requirement shrinks over time, because other processes may never release memory, and estimates may be too high.
    """
    full, least, must = need.full_bytes, need.least_bytes, need.must_bytes
    wanted = full if waited_s < _ADMISSION.full_s else least if waited_s < _ADMISSION.least_s else must
    return min(wanted, _whole_bytes(total_bytes))


def _whole_bytes(total_bytes: int) -> int:
    return max(int(_ADMISSION.whole * total_bytes) - _ADMISSION.context_bytes, 0)


def after_running_out(memory: Memory) -> Need | None:
    """Return the memory to wait for after a request ran out of memory. ``memory``: the memory when the request started.

    Returns None if the request had the device to itself and therefore needs more memory than the device has.
    """
    whole = _whole_bytes(memory.total_bytes)
    return None if memory.free_bytes >= whole else Need(*3 * [min(int(_ADMISSION.more * memory.free_bytes), whole)])


def ran_out_of_memory(answer: AnyAnswer) -> bool:
    """Return whether an answer reports that any process ran out of device memory."""
    if isinstance(answer, Judged):
        verdict = answer.verdict
        return verdict.status in ("memory", "crashed", "build_error", "error") and tells_of_no_memory(verdict.reason)
    return isinstance(answer, Failed) and tells_of_no_memory(answer.reason)


def with_the_whole_device(answer: AnyAnswer) -> AnyAnswer:
    """Return the answer for a kernel that ran out of memory although no other process used the device."""
    if isinstance(answer, Judged) and answer.verdict.status in ("crashed", "build_error"):
        reason = f"the kernel requested more memory than the device has: {answer.verdict.reason}"
        return replace(answer, verdict=replace(answer.verdict, status="memory", reason=reason))
    return answer


def undecided(answer: AnyAnswer, memory: Memory) -> AnyAnswer:
    """Return the answer to a request that repeatedly ran out of memory while other processes occupied memory."""
    held = bytes_in_words(memory.total_bytes - memory.free_bytes)
    reason = (
        f"the device ran out of memory while other processes occupied {held} of its "
        f"{bytes_in_words(memory.total_bytes)}; retry after those processes have ended"
    )
    if isinstance(answer, Judged):
        verdict: Verdict = replace(answer.verdict.without_times(), status="error", pattern=None, reason=reason)
        return replace(answer, verdict=verdict)
    return Failed(reason)
