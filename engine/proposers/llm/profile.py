"""Describe what limits a kernel, for prompts: its bottleneck, launches and instructions. All functions are pure.

The figures come from the verdict, from the machine code and, if the config requests them, from hardware counters.
"""

from __future__ import annotations

from collections import Counter

from engine.devices.occupancy import Occupancy, asks_for_dynamic_shared, launch_shapes, occupancy
from engine.proposers.protocol import Kernel, Task
from engine.session.records.counters import bottleneck_of, counters_in_words
from engine.session.records.verdict import Launch, Verdict

_CLEAR = 0.6
"""Minimum share of a peak at which the peak limits a kernel."""
_NO_BOUND = 1.02
"""Share of a measured peak above which the peak is evidently not an upper bound. The machine may have been busy during
the measurement, the data may stay in caches, or the kernel may do fewer operations than the reference.
"""
_LAUNCH_MS = 0.006
"""Time, in ms, below which launch overhead limits a CUDA kernel."""
_SHOWN = 0.005
"""The smallest share of the arithmetic rate to show."""
TELLING = {
    "tensor core operations",
    "bulk copies (TMA)",
    "asynchronous copies (cp.async)",
    "local memory accesses (spills)",
}
"""Instruction kinds that a profile always lists, because even one instruction does a lot of work or takes a lot of
time.
"""
_LEAST_KIND = 0.005
"""Minimum share of a kernel's instructions at which the profile lists any other kind."""
_MOST_KINDS = 9
"""Maximum number of other instruction kinds in a profile."""
_MOST_LAUNCHES = 2
"""Maximum number of different launches in a profile."""
_MEASURED = {
    "memory": "memory",
    "compute": "arithmetic or instruction issue",
    "latency": "latency (no unit is near its peak)",
}


def profile_lines(task: Task, kernel: Kernel, *, brief: bool = False) -> list[str]:
    """Return a kernel's profile with one fact per line. Include the bottleneck only if hardware counters or the
    kernel's time are known.

    ``brief`` shortens the profile for prompts that ask for a kernel: the main counters, one launch and, if there
    are no counters, the ``TELLING`` instructions.
    """
    verdict, build, lines = kernel.verdict, kernel.verdict.build, []
    measured = bottleneck_of(kernel.counters)
    if measured is not None:
        figures = counters_in_words(kernel.counters, brief=brief)
        lines.append(f"bottleneck, by hardware counters: {_MEASURED[measured]}. {figures}")
    elif verdict.correct and verdict.kernel is not None:
        lines.append(f"bottleneck: {bottleneck(task, verdict.kernel.median_ms)}")
    lines += _launch_lines(task, verdict, 1 if brief else _MOST_LAUNCHES)
    if build is None:
        return lines
    if verdict.launches:
        if build.spill_bytes:
            lines.append(f"{build.spill_bytes} bytes spilled per thread")
    elif build.registers is not None:
        shared = f"{build.shared_bytes or 0} bytes of static shared memory"
        if asks_for_dynamic_shared(kernel.source):
            shared += ", and dynamic shared memory"
        lines.append(f"{build.registers} registers per thread, {build.spill_bytes or 0} bytes spilled, {shared}")
        lines += _occupancy_lines(task.device.arch, build.registers, build.shared_bytes or 0, kernel.source)
    if build.instructions and (not brief or (measured is None and TELLING & set(build.instructions))):
        lines.append(_instructions_line(build.instructions, 0 if brief else _MOST_KINDS))
    return lines


def bottleneck(task: Task, ms: float) -> str:
    """Describe the bottleneck of a kernel that takes ``ms``: memory, arithmetic, launches or latency."""
    memory, arithmetic = _shares(task, ms)
    reached = []
    if memory is not None:
        reached.append(f"{memory:.0%} of the copy bandwidth")
    if arithmetic is not None and (arithmetic >= _SHOWN or memory is None):
        reached.append(f"{arithmetic:.0%} of the measured arithmetic rate")
    figures = " and ".join(reached) or "no peaks measured"
    reach = max(memory or 0.0, arithmetic or 0.0)
    nearest = "memory" if (memory or 0.0) >= (arithmetic or 0.0) else "arithmetic"
    if task.device.kind == "cuda" and ms < _LAUNCH_MS:
        return f"launches. The kernel takes {ms * 1000:.1f} us ({figures}); each launch costs a few us."
    if reach > _NO_BOUND:
        return (
            f"probably {nearest}. The kernel reaches {figures}, so the measured peak is not a bound, and SOL is not a "
            "useful target. Count the instructions, bytes and cycles of the kernel's loops."
        )
    if reach < _CLEAR:
        return (
            f"latency or extra work. The kernel reaches only {figures}: it waits, reads memory more than once, or runs "
            "unnecessary instructions."
        )
    room = max(1.0, 1 / reach)
    if nearest == "memory":
        return (
            f"memory. The kernel reaches {figures}; unless it moves fewer bytes, it can become at most {room:.2f}x "
            "faster."
        )
    return (
        f"arithmetic. The kernel reaches {figures}; unless it does fewer or cheaper operations, it can become at most "
        f"{room:.2f}x faster."
    )


def _shares(task: Task, ms: float) -> tuple[float | None, float | None]:
    """Return the shares of the copy bandwidth and of the arithmetic rate at which the necessary work takes ``ms``.

    The SOL replaces the larger of the two time bounds, because it accounts for the bandwidth and the precision that the
    problem allows.
    """
    device, problem = task.device, task.problem
    memory_ms = problem.sol_bytes / device.bandwidth_gbs / 1e6 if device.bandwidth_gbs else None
    arithmetic_ms = problem.flops / device.peak_gflops / 1e6 if device.peak_gflops and problem.flops else None
    if task.sol_ms is not None:
        if (memory_ms or 0.0) >= (arithmetic_ms or 0.0):
            memory_ms = task.sol_ms
        else:
            arithmetic_ms = task.sol_ms
    return memory_ms and memory_ms / ms, arithmetic_ms and arithmetic_ms / ms


def _occupancy_lines(arch: str, registers: int, shared_bytes: int, source: str) -> list[str]:
    found = {
        occupancy(arch, shape.threads, registers, shared_bytes + (shape.dynamic_shared_bytes or 0))
        for shape in launch_shapes(source)
    }
    return [_occupancy_words(one) for one in sorted(filter(None, found), key=lambda one: one.share)[:1]]


def _launch_lines(task: Task, verdict: Verdict, most: int) -> list[str]:
    """Describe the launches of one call, as the driver recorded them. Identical launches share a line."""
    counts = Counter(verdict.launches)
    lines = [_launch_words(task, launch, count) for launch, count in list(counts.items())[:most]]
    if len(counts) > most:
        lines.append(f"and {len(counts) - most} more launches")
    return lines


def _launch_words(task: Task, launch: Launch, count: int) -> str:
    sizes = ((launch.static_shared_bytes, "static"), (launch.dynamic_shared_bytes, "dynamic"))
    shared = " + ".join(f"{size:,} bytes {kind}" for size, kind in sizes if size)
    said = f"launches {launch.kernel[:60]}{f' {count} times' if count > 1 else ''}: {launch.blocks:,} blocks of "
    said += f"{launch.threads} threads, {launch.registers} registers, {shared or 'no'} shared memory"
    found = occupancy(task.device.arch, launch.threads, launch.registers, launch.shared_bytes)
    if not launch.blocks_per_sm or found is None:
        return said
    share = found.share * launch.blocks_per_sm / found.blocks if found.blocks else found.share
    waves = launch.blocks / (launch.blocks_per_sm * task.device.cores) if task.device.cores else 0.0
    limits = " and ".join(found.limits)
    said += f"; occupancy {share:.0%} ({launch.blocks_per_sm} blocks per SM, limited by {limits})"
    return f"{said}, {waves:.3g} waves"


def _occupancy_words(one: Occupancy) -> str:
    return (
        f"occupancy {one.share:.0%}: {one.blocks} blocks of {one.threads} threads per SM, limited by "
        f"{' and '.join(one.limits)}"
    )


def _instructions_line(counts: dict[str, int], most: int) -> str:
    kinds = sorted((item for item in counts.items() if item[0] != "instructions"), key=lambda item: -item[1])
    least = _LEAST_KIND * counts["instructions"]
    others = [kind for kind, count in kinds if kind not in TELLING and count >= least][:most]
    named = ", ".join(f"{count:,} {kind}" for kind, count in kinds if kind in TELLING or kind in others)
    return f"machine code (static counts): {counts['instructions']:,} instructions" + (
        f", including {named}" if named else ""
    )
