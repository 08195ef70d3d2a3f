"""Hardware counters of a kernel, as ``ncu`` reads them, and the bottleneck that they show. All functions are pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

Bottleneck = Literal["memory", "compute", "latency"]
"""``memory``: DRAM or the caches limit the kernel. ``compute``: the SMs' pipes limit the kernel. ``latency``: neither
limits the kernel; warps wait for each other, for data or for work.
"""

CLEAR = 60.0
"""Minimum percentage of its peak at which a resource can be the bottleneck. The rules of ``ncu`` use the same limit."""

TIME = "gpu__time_duration.sum"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
FIGURES: dict[str, str] = {
    DRAM: "DRAM",
    MEMORY: "memory system",
    SM: "SM pipes",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "tensor cores",
    "lts__t_sector_hit_rate.pct": "L2 hits",
    "l1tex__t_sector_hit_rate.pct": "L1 hits",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "active warps",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue slots",
}
"""Metrics in percent, with the names for screens and prompts."""
_OLD_FIGURES = {"sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor instructions"}
"""Metrics that only older sessions contain."""
_MAIN = (DRAM, SM, "sm__warps_active.avg.pct_of_peak_sustained_active")
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS: dict[str, str] = {
    _STALL.format("long_scoreboard"): "global memory",
    _STALL.format("short_scoreboard"): "shared memory",
    _STALL.format("barrier"): "barriers",
    _STALL.format("math_pipe_throttle"): "arithmetic pipes",
    _STALL.format("lg_throttle"): "the load/store queue",
    _STALL.format("mio_throttle"): "the shared-memory queue",
    _STALL.format("wait"): "fixed latencies",
}
"""Metrics of stalled warps per issued instruction, with the causes of the stalls."""
COUNTERS: tuple[str, ...] = (TIME, *FIGURES, *STALLS)
"""The metrics that a search reads."""


class KernelCounters(Struct, frozen=True):
    """The counters of one launch. ``metrics`` maps names to values, as ``ncu`` reports them; ``ncu`` omits metrics that
    the GPU lacks.
    """

    kernel: str
    metrics: dict[str, float]

    @property
    def us(self) -> float:
        return self.metrics.get(TIME, 0.0) / 1e3


def longest(launches: Sequence[KernelCounters]) -> KernelCounters | None:
    """Return the launch that takes the most time."""
    return max(launches, key=lambda one: one.us, default=None)


def bottleneck_of(launches: Sequence[KernelCounters]) -> Bottleneck | None:
    """Return the bottleneck of a call's longest launch. Return None without counters."""
    if (main := longest(launches)) is None or not {SM, MEMORY, DRAM} & main.metrics.keys():
        return None
    compute = main.metrics.get(SM, 0.0)
    memory = max(main.metrics.get(MEMORY, 0.0), main.metrics.get(DRAM, 0.0))
    if max(compute, memory) < CLEAR:
        return "latency"
    return "memory" if memory >= compute else "compute"


def top_stall(launch: KernelCounters) -> tuple[str, float] | None:
    """Return the cause of most stalls, and the number of stalled warps per issued instruction."""
    known = [(words, launch.metrics[name]) for name, words in STALLS.items() if name in launch.metrics]
    return max(known, key=lambda one: one[1], default=None)


def counters_in_words(launches: Sequence[KernelCounters], *, brief: bool = False) -> str:
    """Describe the longest launch in one line: its figures in percent of peak, and its main stall.

    ``brief``: include only the figures that distinguish memory, compute and latency.
    """
    if (main := longest(launches)) is None:
        return ""
    shown = {name: words for name, words in {**FIGURES, **_OLD_FIGURES}.items() if not brief or name in _MAIN}
    figures = [f"{words} {main.metrics[name]:.0f}%" for name, words in shown.items() if name in main.metrics]
    if (stall := top_stall(main)) is not None:
        figures.append(f"stalls on {stall[0]} ({stall[1]:.1f} warps per issue)")
    total = sum(one.us for one in launches)
    share = f", {main.us / total:.0%} of the time in {main.kernel[:60]}" if len(launches) > 1 and total else ""
    return ", ".join(figures) + share
