"""Select and format facts about the device, kernels and ideas for prompts. All functions are pure.

Prompts are deliberately short. In published searches, models did worse with the full history or with only the best
kernel than with a selection of kernels.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from engine.proposers.categories import CATEGORY_NAMES
from engine.proposers.idea_methods import METHOD, gist_of
from engine.proposers.llm.approaches import VARIANTS
from engine.proposers.protocol import NUMBER, Board, ExampleKernel, Kernel, Task, TriedIdea
from engine.session.records.speedup_text import speedup
from engine.session.state.ranking import reached_in_runoff
from engine.session.worked_ideas import WorkedIdea, operators_of

LEADERS = 3
TRIED = 16
MOST_EXAMPLES = 2
FAILED = 3
"""Maximum number of an idea's failed kernels in a prompt."""
SIBLINGS = 3
"""Maximum number of other kernels of the parent's idea in a prompt."""
_EXAMPLE_CHARS = 6_500
_DIFF_CHARS = 4_000
_LEADER_CHARS = 400
"""Maximum number of characters of a leader's idea in a prompt. Longer ideas crowd out measurements."""
_IDEA_CHARS = 180
_FURTHER_IDEA_CHARS = 110
"""Maximum number of characters of an earlier idea that is neither for the parent nor for one of its ancestors."""
MOST_WORKED = 3
"""Maximum number of ideas from other problems and sessions in a prompt."""
_AHEAD = 1.05
"""Minimum ratio of the parent's time to another kernel's time at which a prompt shows the other kernel's source.
Closer kernels often tie in a runoff.
"""
_SHORTER = 0.7
"""Maximum ratio of a diff's length to a source's length at which the diff replaces the source."""
_MEMORY_BOUND = 0.9
"""A problem is memory-bound if its operations take less than this share of the SOL time."""


class Architecture(Struct, frozen=True):
    """The limits of a CUDA architecture. ``shared_kib``: maximum shared memory per block in KiB, with opt-in.
    ``lanes``: fp32 lanes per SM. ``units``: a description of special units and instructions. Sources: CUDA C++
    Programming Guide, "Compute Capabilities", and tuning guides.
    """

    shared_kib: int
    threads_per_sm: int
    lanes: int
    units: str


_TENSOR = "tensor cores for fp16, bf16, tf32 and int8 (mma.sync, wmma)"
ARCHITECTURES = {
    "sm_70": Architecture(96, 2048, 64, "tensor cores for fp16 (wmma, mma.sync)"),
    "sm_75": Architecture(64, 1024, 64, "tensor cores for fp16 and int8 (wmma, mma.sync)"),
    "sm_80": Architecture(163, 2048, 64, f"{_TENSOR}; cp.async"),
    "sm_86": Architecture(99, 1536, 128, f"{_TENSOR}; cp.async"),
    "sm_87": Architecture(163, 1536, 128, f"{_TENSOR}; cp.async"),
    "sm_89": Architecture(99, 1536, 128, f"{_TENSOR} and fp8; cp.async"),
    "sm_90": Architecture(
        227, 2048, 128, f"{_TENSOR} and fp8, wgmma; cp.async, TMA (cp.async.bulk), thread block clusters, mbarrier"
    ),
    "sm_100": Architecture(
        227,
        2048,
        128,
        f"{_TENSOR} and fp8, fp4, tcgen05; cp.async, TMA (cp.async.bulk), thread block clusters, mbarrier",
    ),
    "sm_120": Architecture(99, 1536, 128, f"{_TENSOR} and fp8, fp4; cp.async, TMA (cp.async.bulk)"),
}


def device_lines(task: Task) -> list[str]:
    """Return lines that describe the device: its model, its measured peaks and its architecture's limits."""
    device, threads = task.device, task.demands.threads
    lines = []
    if device.kind == "cuda":
        clock = f" at up to {device.clock_mhz:,} MHz" if device.clock_mhz else ""
        lines.append(f"{device.name}, {device.arch}, {device.cores} SMs{clock}, {device.memory_bytes / 2**30:.0f} GiB")
    else:
        lines.append(f"{device.name}, {device.arch}, {threads} threads, {device.memory_bytes / 2**30:.0f} GiB")
        if device.features:
            named = [feature for feature in device.features if feature not in _implied(device.features)]
            lines.append(f"vector extensions: {', '.join(named)}{_vector_peak(device.features)}")
        if device.caches:
            lines.append(f"data caches: {', '.join(device.caches)}")
    if (bandwidth := _bandwidth_gbs(task)) is not None:
        of_this_size = " (at this problem's size)" if bandwidth != device.bandwidth_gbs else ""
        lines.append(f"measured copy bandwidth: {bandwidth:,.0f} GB/s{of_this_size}")
    if device.peak_gflops:
        how = "fp16 tensor-core matrix product" if device.kind == "cuda" else "fp32 matrix product or convolution"
        lines.append(f"measured rate of a large {how}: {device.peak_gflops:,.0f} GFLOP/s")
    limits = ARCHITECTURES.get(device.arch.rstrip("af")) if device.kind == "cuda" else None
    if limits is not None:
        lines.append(
            f"at most {limits.shared_kib} KiB of shared memory per block; per SM {_shared_of_sm(device.arch, limits)}, "
            f"{limits.threads_per_sm} threads, 65,536 registers, {limits.lanes} fp32 lanes"
        )
        lines.append(limits.units)
    return lines


def _implied(features: tuple[str, ...]) -> set[str]:
    """Return the vector extensions that every processor with the newest of ``features`` has."""
    if "avx512f" in features:
        return {"sse4_2", "avx", "avx2", "fma", "f16c"}
    return {"sse4_2", "avx"} if "avx2" in features else set()


def _vector_peak(features: tuple[str, ...]) -> str:
    """Describe the theoretical peak of x86 vector units per core. The prompt contains this peak, because rates measured
    on a busy machine are too low.
    """
    if "avx512f" in features:
        return "; peak per core: 64 fp32 FLOP per cycle (32 with one FMA unit)"
    return "; peak per core: 32 fp32 FLOP per cycle" if {"avx2", "fma"} <= set(features) else ""


def _shared_of_sm(arch: str, limits: Architecture) -> str:
    """Describe an SM's shared memory. From sm_80 on, an SM has 1 KiB more than a block's maximum, because CUDA reserves
    1 KiB per block.
    """
    if int(arch.rstrip("af").removeprefix("sm_")) < 80:
        return f"{limits.shared_kib} KiB of shared memory"
    return f"{limits.shared_kib + 1} KiB of shared memory (CUDA reserves another 1 KiB per block)"


def _bandwidth_gbs(task: Task) -> float | None:
    """Return the copy bandwidth from which the judge computed the problem's SOL.

    On a CPU, the judge copies as much data as the problem moves, which may fit in caches
    (``timing/speed_of_light.py``). If operations determine the problem's SOL, return the device's measured bandwidth.
    """
    measured, rate, sol_ms = task.device.bandwidth_gbs, task.device.peak_gflops, task.sol_ms
    if task.device.kind != "cpu" or measured is None or not sol_ms or not task.problem.sol_bytes:
        return measured
    computing_ms = (task.problem.flops or 0) / rate / 1e6 if rate else 0.0
    return task.problem.sol_bytes / sol_ms / 1e6 if computing_ms < _MEMORY_BOUND * sol_ms else measured


def cost_line(task: Task) -> str:
    """Describe the problem's minimum work: bytes, operations and their ratio."""
    said = [f"at least {task.problem.sol_bytes / 1e6:,.1f} MB of memory traffic"]
    if task.problem.flops:
        said.append(f"{task.problem.flops / 1e9:,.3g} GFLOP")
        if task.problem.sol_bytes:
            said.append(f"{task.problem.flops / task.problem.sol_bytes:.3g} FLOP per byte")
    return ", ".join(said)


def score(task: Task, kernel: Kernel, *, brief: bool = False) -> str:
    """Describe a kernel's result in one line: time, speedups, % SOL and, unless ``brief``, bandwidth and operations per
    second.
    """
    verdict = kernel.verdict
    if not verdict.correct or verdict.kernel is None or verdict.speedup is None:
        reason = verdict.reason.strip().splitlines()
        return f"{verdict.status.replace('_', ' ')}{f': {reason[0][:200]}' if reason else ''}"
    ms = verdict.kernel.median_ms
    said = [f"{_ms(ms)} ms", f"{speedup(verdict.speedup)} over eager"]
    if kernel.over_compile is not None:
        said.append(f"{speedup(kernel.over_compile)} over torch.compile")
    if task.sol_ms is not None:
        said.append(f"{100 * task.sol_ms / ms:.0f}% SOL")
    if task.problem.sol_bytes and not brief:
        said.append(f"{task.problem.sol_bytes / ms / 1e6:,.0f} GB/s of necessary traffic")
    if (gflops := (task.problem.flops or 0) / ms / 1e6) >= 1.0 and not brief:
        said.append(f"{gflops:,.0f} GFLOP/s")
    if kernel.runoff_ratio is not None:
        slower = f"{kernel.runoff_ratio:.2f}x the fastest time in the runoff"
        said.append(slower if kernel.runoff_ratio > 1.0 else "fastest in the runoff")
    return ", ".join(said)


def time_of(kernel: Kernel) -> str:
    """Return a correct kernel's time as text."""
    return f"{_ms(kernel.verdict.kernel.median_ms)} ms" if kernel.verdict.kernel is not None else "no time"


def relative_times(kernels: Iterable[Kernel]) -> dict[str, float]:
    """Return the correct kernels' times relative to the runoff's winner, fastest first. Strategies rank kernels in the
    same order.

    A runoff times kernels side by side, so it overrules speedups, which a disturbed run of the reference may distort.
    """
    known = [one for one in kernels if one.verdict.correct and one.verdict.speedup is not None]
    timed = sorted((one for one in known if one.runoff_ratio), key=lambda one: one.runoff_ratio or 1.0)
    least = (timed[0].runoff_ratio or 1.0) if timed else 1.0
    speedups = [(one.verdict.speedup or 0.0, (one.runoff_ratio or 1.0) / least) for one in timed]
    reached = reached_in_runoff(speedups) if timed else 1.0

    def relative_time(one: Kernel) -> float:
        return one.runoff_ratio / least if one.runoff_ratio else reached / (one.verdict.speedup or 1e-9)

    return {one.variant: relative_time(one) for one in sorted(known, key=relative_time)}


def by_speed(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Return the correct kernels, fastest first."""
    by_name = {one.variant: one for one in kernels}
    return [by_name[name] for name in relative_times(by_name.values())]


def fastest(board: Board, parent: Kernel | None) -> Kernel | None:
    """Return the fastest correct kernel, which the next kernel must beat."""
    kernels = {one.variant: one for one in (*((parent,) if parent is not None else ()), *board.kernels)}
    return next(iter(by_speed(kernels.values())), parent)


def leaders(board: Board, parent: Kernel | None) -> list[Kernel]:
    """Return the fastest correct kernels, one per idea except the parent's. Several good kernels help a model more than
    a single one.
    """
    chosen: list[Kernel] = []
    for kernel in by_speed(board.kernels):
        own = parent is not None and (kernel.variant == parent.variant or kernel.idea == parent.idea)
        if not own and all(other.idea != kernel.idea for other in chosen):
            chosen.append(kernel)
        if len(chosen) == LEADERS:
            break
    return chosen


def failed_siblings(board: Board, idea: str, of: Kernel | None = None) -> list[Kernel]:
    """Return the latest failed kernels of the idea with the text ``idea``, except ``of`` and its ancestors."""
    own = {of.variant, *board.lineage} if of is not None else set()
    found = [one for one in board.kernels if one.idea == idea and not one.verdict.correct and one.variant not in own]
    return found[-FAILED:]


def earlier_repairs(board: Board) -> list[Kernel]:
    """Return the failed ancestors of the kernel to repair, the oldest first."""
    by_name = {kernel.variant: kernel for kernel in board.kernels}
    ancestors = [by_name[name] for name in board.lineage[1:] if name in by_name]
    return [one for one in reversed(ancestors) if not one.verdict.correct]


def changes_from_parent(board: Board, failed: Kernel) -> tuple[Kernel, str] | None:
    """Return the nearest correct ancestor of ``failed``, and the diff from its source to that of ``failed``.

    Returns None if there is no correct ancestor or if the diff is too long to help.
    """
    by_name = {kernel.variant: kernel for kernel in board.kernels}
    ancestors = (by_name[name] for name in board.lineage[1:] if name in by_name)
    parent = next((one for one in ancestors if one.verdict.correct), None)
    if parent is None:
        return None
    lines = difflib.unified_diff(parent.source.splitlines(), failed.source.splitlines(), lineterm="", n=1)
    diff = "\n".join(list(lines)[2:])
    return (parent, diff) if 0 < len(diff) <= _DIFF_CHARS else None


def shown_source(board: Board, parent: Kernel | None) -> Kernel | None:
    """Return the fastest kernel of another idea if that kernel is clearly faster than the parent. The ideas prompt
    shows that kernel's source or its diff from the parent.
    """
    best = next(iter(leaders(board, parent)), None)
    if best is None or parent is None:
        return best
    times = relative_times({one.variant: one for one in (*board.kernels, parent)}.values())
    return best if times[best.variant] * _AHEAD <= times.get(parent.variant, math.inf) else None


def changes_between(parent: Kernel | None, other: Kernel | None) -> str | None:
    """Return the diff from the parent's source to the other source; None if the diff is not much shorter than the other
    source.
    """
    if parent is None or other is None:
        return None
    lines = difflib.unified_diff(parent.source.splitlines(), other.source.splitlines(), lineterm="", n=1)
    diff = "\n".join(list(lines)[2:])
    return diff if 0 < len(diff) <= _SHORTER * len(other.source) else None


def worked_elsewhere(task: Task, board: Board) -> list[WorkedIdea]:
    """Return ideas that made kernels of similar problems faster, the most similar problems first.

    Similar problems share operators. If the reference is untraced, all problems are similar. Each combination of
    methods appears once. The result omits combinations that the problem's search has tried.
    """
    own = operators_of(task.problem)

    def similarity(idea: WorkedIdea) -> float:
        return len(own & idea.operators) / len(own | idea.operators) if own else 0.0

    seen = {gist_of(idea.text, idea.data).methods for idea in board.tried}
    chosen: list[WorkedIdea] = []
    for idea in sorted(board.worked, key=lambda one: (-similarity(one), -one.gain)):
        methods = gist_of(idea.text, idea.data).methods or frozenset([idea.text])
        if len(chosen) == MOST_WORKED or (own and not similarity(idea)):
            break
        if idea.language in task.allowed and methods not in seen:
            seen.add(methods)
            chosen.append(idea)
    return chosen


def leader_idea(kernel: Kernel) -> str:
    """Return the start of a leader's idea."""
    return _shortened(kernel.idea, _LEADER_CHARS)


def worked_line(idea: WorkedIdea) -> str:
    """Describe in one line an idea that worked elsewhere."""
    before = f"{speedup(idea.before)} to " if idea.before is not None else ""
    session = f" in session {idea.session}" if idea.session else ""
    gist = _idea_words(idea.text, idea.data, _IDEA_CHARS)
    return f"{idea.problem}{session}, {before}{speedup(idea.speedup)} over eager: {gist}"


def _idea_words(text: str, data: Mapping[str, Any], most: int) -> str:
    """Return the idea's method in the model's words, if known, and the start of the idea's text."""
    method = str(data.get(METHOD) or "")
    return _shortened(f"{method}: {text}" if method else text, most)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def tried_ideas(board: Board) -> list[TriedIdea]:
    """Return the earlier ideas that have a result, oldest first."""
    return [idea for idea in board.tried if idea.speedup is not None or idea.failure]


def relevant_ideas(board: Board, parent: Kernel | None) -> list[TriedIdea]:
    """Return at most ``TRIED`` earlier ideas that are relevant to the next request, oldest first.

    Ideas for the parent and its ancestors have priority. The best other ideas come next, and then the latest ideas.
    """
    tried = tried_ideas(board)
    chosen: dict[str, TriedIdea] = {}

    def take(ideas: Iterable[TriedIdea], limit: int) -> None:
        for idea in ideas:
            if len(chosen) >= limit:
                return
            chosen.setdefault(idea.idea, idea)

    if parent is not None:
        take((idea for idea in reversed(tried) if idea.parent == parent.variant), TRIED // 2)
        take((idea for idea in reversed(tried) if idea.parent in board.lineage[1:]), TRIED * 3 // 4)
    take(sorted(tried, key=lambda idea: -(idea.speedup or 0.0)), len(chosen) + TRIED // 4)
    take(reversed(tried), TRIED)
    return [idea for idea in tried if idea.idea in chosen]


def slowdown(board: Board, parent: Kernel | None, idea: TriedIdea) -> str:
    """Describe how much slower an idea's fastest kernel is than the problem's fastest kernel; "" if not slower."""
    best, times = fastest(board, parent), relative_times(board.kernels)
    own = [times[one.variant] for one in board.kernels if one.idea == idea.text and one.variant in times]
    if not own or best is None or best.variant not in times or min(own) <= times[best.variant]:
        return ""
    return f"{min(own) / times[best.variant]:.2f}x the time of {best.variant}"


def sibling_lines(board: Board, parent: Kernel | None) -> list[str]:
    """Describe the latest other kernels of the parent's idea: one line per kernel, with its approach and result."""
    if parent is None:
        return []
    ways: list[str] = next((idea.data.get(VARIANTS) or [] for idea in board.tried if idea.text == parent.idea), [])
    times = relative_times(board.kernels)
    lines = []
    for one in [one for one in board.kernels if one.idea == parent.idea and one.variant != parent.variant][-SIBLINGS:]:
        number = one.data.get(NUMBER)
        way = f" ({_shortened(ways[number], _IDEA_CHARS)})" if isinstance(number, int) and number < len(ways) else ""
        if one.variant in times and parent.variant in times:
            ratio = times[one.variant] / times[parent.variant]
            lines.append(f"{one.variant}{way}: {time_of(one)}, {ratio:.2f}x the time of {parent.variant}")
        elif not one.verdict.correct:
            lines.append(
                f"{one.variant}{way}: {one.verdict.status.replace('_', ' ')}: {one.verdict.reason.strip()[:160]}"
            )
    return lines


def tried_line(idea: TriedIdea, near: bool = True, slowdown: str = "") -> str:
    """Describe an idea and its result in one line. ``near``: the idea was for the parent or one of the parent's
    ancestors. ``slowdown`` compares the idea's time with the fastest kernel's time.
    """
    text = _idea_words(idea.text, idea.data, _IDEA_CHARS if near else _FURTHER_IDEA_CHARS)
    category = CATEGORY_NAMES.get(idea.category, idea.category)
    if idea.speedup is None:
        return f"({category}) {text} -> {idea.failure[:160] or 'no correct kernel'}"
    before = f", from {speedup(idea.parent_speedup)}" if idea.parent_speedup is not None else ""
    return f"({category}) {text} -> {speedup(idea.speedup)} over eager{before}{f', {slowdown}' if slowdown else ''}"


def examples(board: Board) -> list[ExampleKernel]:
    """Return examples from other problems that are short enough for a prompt."""
    return [kernel for kernel in board.examples if len(kernel.source) <= _EXAMPLE_CHARS][:MOST_EXAMPLES]


def _ms(ms: float) -> str:
    return f"{ms:.3g}" if ms < 100 else f"{ms:.0f}"
