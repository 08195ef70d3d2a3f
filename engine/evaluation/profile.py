"""Hardware counters of one kernel, read by Nsight Compute (``ncu``): some two dozen that say what bounds it.

Few and chosen: for whoever improves a kernel, a couple of dozen metrics are worth more than all of them.
"""

from __future__ import annotations

import asyncio
import csv
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from engine.child import end_group
from engine.problem.spec import ProblemSpec
from engine.toolkit import NoTool, find_cuda_tool

DEADLINE_S = 300.0
_NSIGHT = Path("/opt/nvidia/nsight-compute")

METRICS: dict[str, str] = {
    "gpu__time_duration.sum": "time",
    "launch__grid_size": "blocks",
    "launch__block_size": "threads per block",
    "launch__waves_per_multiprocessor": "waves per multiprocessor",
    "launch__registers_per_thread": "registers per thread",
    "launch__shared_mem_per_block": "shared memory per block",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute throughput, of the peak",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory throughput, of the peak",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM throughput, of the peak",
    "dram__bytes_read.sum": "DRAM read",
    "dram__bytes_write.sum": "DRAM written",
    "lts__t_sector_hit_rate.pct": "L2 hits",
    "l1tex__t_sector_hit_rate.pct": "L1 hits",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": "bytes used of a loaded sector",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct": "bytes used of a stored sector",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "bank conflicts in shared memory",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy, achieved",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "cycles with an instruction issued",
    "smsp__thread_inst_executed_per_inst_executed.ratio": "active threads per instruction",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor cores, of the peak",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": "stalled on global memory",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio": "stalled on shared memory",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": "stalled at a barrier",
    "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio": "stalled on arithmetic units",
    "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio": "stalled on the load/store queue",
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": "stalled on fixed latency",
}


class Metric(Struct, frozen=True):
    """``label``: what it means in words. ``unit`` as ncu gives it ("%", "byte", "ns", "")."""

    name: str
    label: str
    value: float
    unit: str


class KernelProfile(Struct, frozen=True):
    """The counters of one launch of one CUDA kernel."""

    kernel: str
    metrics: tuple[Metric, ...]


class ProfileError(Exception):
    """No counters; the text says why and what to do."""


def find_ncu() -> str:
    """The newest Nsight Compute of this machine. Raises ``NoTool``."""
    try:
        return find_cuda_tool("ncu")
    except NoTool:
        found = sorted(_NSIGHT.glob("*/ncu"))
        if found:
            return str(found[-1])
    raise NoTool(
        f"no ncu on PATH, beside nvcc, in $CUDA_HOME or {_NSIGHT}; install Nsight Compute (with NVIDIA's apt "
        "repository: apt-get install nsight-compute; it is no package of PyPI)"
    )


async def profile(problem: ProblemSpec, library: Path) -> tuple[KernelProfile, ...]:
    """Run the built ``.cu`` kernel under ncu, outside of the sandbox, and read its counters: one entry per launch.

    The caller holds the device. Raises ``NoTool`` and ``ProfileError``. Cancelling ends ncu and the kernel.
    """
    command = [
        *(find_ncu(), "--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off"),
        *("--target-processes", "all", "--metrics", ",".join(METRICS)),
        *(sys.executable, "-m", "engine.evaluation.profiled", str(library), "cuda"),
    ]
    root = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        process_group=0,
        env={**os.environ, "PYTHONPATH": root if not inherited else f"{root}{os.pathsep}{inherited}"},
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(msgspec.json.encode(problem)), DEADLINE_S)
    except TimeoutError:
        raise ProfileError(f"ncu did not end within {DEADLINE_S:g} s") from None
    finally:
        if process.returncode is None:
            await end_group(process)
    text = output.decode(errors="replace")
    if (refusal := why_not(text)) is not None:
        raise ProfileError(refusal)
    if found := tuple(parse(text)):
        return found
    said = [line.strip() for line in text.splitlines() if line.strip()][-3:]
    raise ProfileError(f"ncu ended with status {process.returncode} and no counters: {' / '.join(said)[:600]}")


def why_not(output: str) -> str | None:
    """What ncu's words mean where counters may not be read, or None."""
    if "ERR_NVGPUCTRPERM" in output:
        return (
            "this user may not read the GPU's counters (ERR_NVGPUCTRPERM). As root, once: put 'options nvidia "
            "NVreg_RestrictProfilingToAdminUsers=0' into a file of /etc/modprobe.d and reload the driver or reboot; or "
            "run this command as root; in a container: docker run --cap-add=SYS_ADMIN. Rented machines often allow none"
        )
    if "ERR_NVGPUCTRINUSE" in output or "LibraryNotLoaded" in output:
        return "another profiler (ncu, DCGM) holds the GPU's counters; stop it (dcgmi profile --pause) and try again"
    return None


def parse(output: str) -> Iterator[KernelProfile]:
    """The launches in what ``ncu --csv --page raw`` printed; metrics that the chip does not have are left out."""
    lines = output.splitlines()
    start = next((place for place, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        return
    rows = list(csv.reader(io.StringIO("\n".join(lines[start:]))))
    header, units = rows[0], rows[1] if len(rows) > 1 else []
    name = header.index("Kernel Name")
    for row in rows[2:]:
        if len(row) != len(header):
            continue
        metrics = []
        for metric, label in METRICS.items():
            if metric in header and (value := _number(row[header.index(metric)])) is not None:
                metrics.append(Metric(metric, label, value, units[header.index(metric)]))
        yield KernelProfile(row[name], tuple(metrics))


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
