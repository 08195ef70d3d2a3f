"""What a prompt says of device, kernels and ideas: chosen and put into words. Pure.

Prompts are kept lean: published searches found that a full history makes models worse, and that showing only the
best kernel does too. What is left out here is left out on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from engine.proposers.protocol import CATEGORY_NAMES, BankKernel, Board, Kernel, Task, TriedIdea
from engine.verdict import BuildReport

LEADERS = 3
TRIED = 16
BANK = 2
_BANK_CHARS = 7_000
_IDEA_CHARS = 260
_MEMORY_BOUND = 0.9
"""Operations that take less than this share of the floor did not set it."""


class Architecture(Struct, frozen=True):
    """Limits of a CUDA architecture: CUDA C++ Programming Guide, "Compute Capabilities", and the vendor's tuning
    guides. ``shared_kib``: most of a block, with opt-in; ``lanes``: of fp32; ``units``: what its instructions offer."""

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
    """The device's facts, measured peaks first, one a line."""
    device, threads = task.device, task.demands.threads
    lines = []
    if device.kind == "cuda":
        lines.append(f"{device.name}, {device.arch}, {device.cores} SMs, {device.memory_bytes / 2**30:.0f} GiB")
    else:
        lines.append(f"{device.name}, {device.arch}, {threads} threads, {device.memory_bytes / 2**30:.0f} GiB")
    if (bandwidth := _bandwidth_gbs(task)) is not None:
        of_this_size = " (of a copy as large as this problem)" if bandwidth != device.bandwidth_gbs else ""
        lines.append(f"measured copy bandwidth: {bandwidth:,.0f} GB/s{of_this_size}")
    if device.peak_gflops:
        how = "fp16 matrix product, tensor cores" if device.kind == "cuda" else "fp32 matrix product"
        lines.append(f"measured rate of a large {how}: {device.peak_gflops:,.0f} GFLOP/s")
    limits = ARCHITECTURES.get(device.arch.rstrip("af")) if device.kind == "cuda" else None
    if limits is not None:
        lines.append(
            f"at most {limits.shared_kib} KiB of shared memory per block (above 48 KiB: dynamic, after "
            f"cudaFuncSetAttribute); per SM {_shared_of_sm(device.arch, limits)}, {limits.threads_per_sm} threads, "
            f"65,536 registers, {limits.lanes} fp32 lanes"
        )
        lines.append(limits.units)
    return lines


def _shared_of_sm(arch: str, limits: Architecture) -> str:
    """From sm_80 on, an SM has 1 KiB more than a block may ask for, and each block on it takes 1 KiB beside its own."""
    if int(arch.rstrip("af").removeprefix("sm_")) < 80:
        return f"{limits.shared_kib} KiB of shared memory"
    return f"{limits.shared_kib + 1} KiB of shared memory (each block takes 1 KiB more than it asks for)"


def _bandwidth_gbs(task: Task) -> float | None:
    """The copy bandwidth that the problem's floor goes by, so that a reader who divides gets the floor.

    On a CPU that is of a copy as large as the problem, which caches may hold (``engine.evaluation.roofline``); the
    device's own figure where operations set the floor.
    """
    measured, rate, floor_ms = task.device.bandwidth_gbs, task.device.peak_gflops, task.floor_ms
    if task.device.kind != "cpu" or measured is None or not floor_ms or not task.problem.floor_bytes:
        return measured
    computing_ms = (task.problem.flops or 0) / rate / 1e6 if rate else 0.0
    return task.problem.floor_bytes / floor_ms / 1e6 if computing_ms < _MEMORY_BOUND * floor_ms else measured


def cost_line(task: Task) -> str:
    """What the problem needs at least: bytes, operations, and the floor that follows."""
    said = [f"{task.problem.floor_bytes / 1e6:,.1f} MB must move at least"]
    if task.problem.flops:
        said.append(f"{task.problem.flops / 1e9:,.3g} GFLOP")
        if task.problem.floor_bytes:
            said.append(f"{task.problem.flops / task.problem.floor_bytes:.3g} FLOP per byte")
    return ", ".join(said)


def score(task: Task, kernel: Kernel) -> str:
    """A kernel's result in a line: time, factors, share of the floor, what that is per second, registers."""
    verdict = kernel.verdict
    if not verdict.correct or verdict.kernel is None or verdict.speedup is None:
        reason = verdict.reason.strip().splitlines()
        return f"{verdict.status.replace('_', ' ')}{f': {reason[0][:200]}' if reason else ''}"
    ms = verdict.kernel.median_ms
    said = [f"{_ms(ms)} ms", f"{verdict.speedup:.2f}x eager"]
    if task.compile_ms is not None:
        said.append(f"{task.compile_ms / ms:.2f}x torch.compile")
    if task.floor_ms is not None:
        said.append(f"floor/time {100 * task.floor_ms / ms:.0f} %")
    if task.problem.floor_bytes:
        said.append(f"{task.problem.floor_bytes / ms / 1e6:,.0f} GB/s of the bytes it must move")
    if task.problem.flops:
        said.append(f"{task.problem.flops / ms / 1e6:,.0f} GFLOP/s")
    return ", ".join(said)


def resources(build: BuildReport | None) -> str:
    """What ptxas said of the kernel's worst function, "" where there is no such report."""
    if build is None or build.registers is None:
        return ""
    return (
        f"ptxas: {build.registers} registers per thread, {build.spill_bytes or 0} bytes spilled, "
        f"{build.shared_bytes or 0} bytes of static shared memory"
    )


def leaders(board: Board, parent: Kernel | None) -> list[Kernel]:
    """The fastest correct kernels but the parent, one an idea: several good ones, not only the best."""
    ranked = sorted(
        (kernel for kernel in board.kernels if kernel.verdict.correct and kernel.verdict.speedup is not None),
        key=lambda kernel: -(kernel.verdict.speedup or 0.0),
    )
    chosen: list[Kernel] = []
    for kernel in ranked:
        own = parent is not None and (kernel.variant == parent.variant or kernel.idea == parent.idea)
        if not own and all(other.idea != kernel.idea for other in chosen):
            chosen.append(kernel)
        if len(chosen) == LEADERS:
            break
    return chosen


def shown_source(board: Board, parent: Kernel | None) -> Kernel | None:
    """The one kernel beside the parent whose source is worth its length: the best, where the parent is slower."""
    best = next(iter(leaders(board, parent)), None)
    if best is None or parent is None:
        return best
    return best if (best.verdict.speedup or 0.0) > (parent.verdict.speedup or 0.0) else None


def relevant_ideas(board: Board, parent: Kernel | None) -> list[TriedIdea]:
    """Ideas already tried that bear on the next question, oldest first, at most ``TRIED``.

    Those on the parent itself and those it was made of come first, then the best of the others, then the latest.
    """
    tried = [idea for idea in board.tried if idea.speedup is not None or idea.failure]
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


def tried_line(idea: TriedIdea) -> str:
    """An idea and how it did, in a line."""
    text = idea.text if len(idea.text) <= _IDEA_CHARS else idea.text[: _IDEA_CHARS - 3] + "..."
    category = CATEGORY_NAMES.get(idea.category, idea.category)
    if idea.speedup is None:
        return f"({category}) {text} -> {idea.failure[:160] or 'nothing correct'}"
    before = f", from {idea.parent_speedup:.2f}x" if idea.parent_speedup is not None else ""
    return f"({category}) {text} -> {idea.speedup:.2f}x eager{before}"


def bank(board: Board) -> list[BankKernel]:
    """Kernels of other problems that are short enough to be shown."""
    return [kernel for kernel in board.bank if len(kernel.source) <= _BANK_CHARS][:BANK]


def _ms(ms: float) -> str:
    return f"{ms:.3g}" if ms < 100 else f"{ms:.0f}"
