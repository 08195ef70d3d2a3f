"""Read about two dozen hardware counters of one kernel with Nsight Compute (``ncu``).

The list of counters is deliberately short: a few metrics that identify the bottleneck help more than the full set.
"""

from __future__ import annotations

import asyncio
import csv
import io
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from engine.problem.spec import ProblemSpec
from engine.system.child import end_group
from engine.system.python_process import python_command, python_path
from engine.system.tool_paths import NoTool, find_cuda_tool

DEADLINE_S = 300.0
_NSIGHT = Path("/opt/nvidia/nsight-compute")

METRICS: dict[str, str] = {
    "gpu__time_duration.sum": "time",
    "launch__grid_size": "blocks",
    "launch__block_size": "threads per block",
    "launch__waves_per_multiprocessor": "waves per multiprocessor",
    "launch__registers_per_thread": "registers per thread",
    "launch__shared_mem_per_block": "shared memory per block",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute throughput, of peak",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory throughput, of peak",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM throughput, of peak",
    "dram__bytes_read.sum": "DRAM read",
    "dram__bytes_write.sum": "DRAM written",
    "lts__t_sector_hit_rate.pct": "L2 hits",
    "l1tex__t_sector_hit_rate.pct": "L1 hits",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": "bytes used per loaded sector",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct": "bytes used per stored sector",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "bank conflicts in shared memory",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved occupancy",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "cycles that issue instructions",
    "smsp__thread_inst_executed_per_inst_executed.ratio": "active threads per instruction",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "tensor cores, of peak",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": "stalled on global memory",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio": "stalled on shared memory",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": "stalled at a barrier",
    "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio": "stalled on arithmetic units",
    "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio": "stalled on the load/store queue",
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": "stalled on fixed latency",
}


class Metric(Struct, frozen=True):
    """One counter. ``label``: the name of the measured quantity. ``unit``: the unit that ncu reports ("%", "byte",
    "ns", "").
    """

    name: str
    label: str
    value: float
    unit: str


class KernelProfile(Struct, frozen=True):
    """Counters of one launch of one CUDA kernel."""

    kernel: str
    metrics: tuple[Metric, ...]


class ProfileError(Exception):
    """A failure to read counters with ncu; the message gives the reason and the remedy. ``lasting``: whether this
    machine's setup is the reason.
    """

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


def find_ncu() -> str:
    """Return the path to ncu in a CUDA toolkit or on PATH, else in the newest Nsight Compute. Raises ``NoTool``."""
    try:
        return find_cuda_tool("ncu")
    except NoTool:
        found = sorted(_NSIGHT.glob("*/ncu"))
        if found:
            return str(found[-1])
    raise NoTool(
        f"ncu is not on PATH, not in nvcc's directory, and not in $CUDA_HOME or {_NSIGHT}; install Nsight Compute "
        f"(with NVIDIA's apt "
        "repository: apt-get install nsight-compute; PyPI does not have it)"
    )


async def profile(
    problem: ProblemSpec,
    kernel: Path,
    metrics: Collection[str] = METRICS,
    report: Path | None = None,
    device: str | None = None,
) -> tuple[KernelProfile, ...]:
    """Run a built CUDA kernel or module under ncu, outside the sandbox. Return the kernel's counters, with one entry
    per launch.

    ``report``: the path for ncu's report, which ends in ``.ncu-rep``. ``device``: the GPU's NVML id; the profiled
    process locks this GPU. If ``device`` is None, the kernel runs on the first GPU, which the caller must lock. Raises
    ``NoTool`` and ``ProfileError``. Canceling ends ncu and the kernel.
    """
    ncu, printed = find_ncu(), ("--csv", "--page", "raw", "--print-units", "base")
    environment = {**os.environ, "PYTHONPATH": python_path()}
    if device is not None:
        environment |= {"CUDA_VISIBLE_DEVICES": device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    command = [
        *(ncu, *(printed if report is None else ("--force-overwrite", "--export", str(report)))),
        *("--profile-from-start", "off", "--target-processes", "all", "--metrics", ",".join(metrics)),
        *python_command(
            "engine.evaluation.inspect.profiled_process", str(kernel), "cuda", *([device] if device else [])
        ),
    ]
    text, status = await _output(command, msgspec.json.encode(problem), environment)
    if report is not None and report.exists():
        text, _ = await _output([ncu, "--import", str(report), *printed], b"", environment)
    if (refusal := why_not(text)) is not None:
        raise ProfileError(refusal, lasting=True)
    if found := tuple(parse(text)):
        return found
    said = [line.strip() for line in text.splitlines() if line.strip()][-3:]
    raise ProfileError(f"ncu exited with status {status} and reported no counters: {' / '.join(said)[:600]}")


async def _output(command: Sequence[str], given: bytes, environment: Mapping[str, str]) -> tuple[str, int | None]:
    """Run ncu. Return ncu's output and exit status."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        process_group=0,
        env=environment,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(given), DEADLINE_S)
    except TimeoutError:
        raise ProfileError(f"ncu did not finish within {DEADLINE_S:g} s; try a smaller problem") from None
    finally:
        if process.returncode is None:
            await end_group(process)
    return output.decode(errors="replace"), process.returncode


def why_not(output: str) -> str | None:
    """Return the reason and remedy if ``output`` says that counters are not accessible, else None."""
    if "ERR_NVGPUCTRPERM" in output:
        return (
            "this user has no access to the GPU's counters (ERR_NVGPUCTRPERM). As root, put 'options nvidia "
            "NVreg_RestrictProfilingToAdminUsers=0' into a .conf file in /etc/modprobe.d, and then reload the "
            "driver or reboot. Alternatively, run this command as root; in a container: docker run "
            "--cap-add=SYS_ADMIN. Many rented machines do not permit any of these steps"
        )
    if "ERR_NVGPUCTRINUSE" in output or "LibraryNotLoaded" in output:
        return "another profiler (ncu, DCGM) uses the GPU's counters; stop it (dcgmi profile --pause) and try again"
    return None


def parse(output: str) -> Iterator[KernelProfile]:
    """Yield the launches in the output of ``ncu --csv --page raw``, without metrics that the GPU lacks."""
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
