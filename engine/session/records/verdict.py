"""The verdict: the judge's result for one variant, with its evidence. Verdicts are frozen records, stored as JSON.
Times are in milliseconds, and memory is in bytes. ``speedup`` is reference time / kernel time.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

UNJUDGED = ("cancelled", "error")
"""Statuses that say nothing about the kernel: its evaluation was canceled or failed."""
BUSY = 0.15
"""Share of all cores that other programs may use before a time counts as disturbed."""

_MOST_NAME_CHARS = 2000
_Count = Annotated[int, Meta(ge=0, lt=1 << 40)]

Stage = Literal["queued", "building", "waiting", "checking", "timing"]

Status = Literal[
    "correct",
    "build_error",
    "wrong",
    "cheating",
    "library",
    "out_of_bounds",
    "crashed",
    "timeout",
    "memory",
    "forbidden",
    "cancelled",
    "error",
]
"""``correct``: the kernel passed every check, and the judge timed it. ``wrong``: the kernel's outputs differ from the
reference. ``cheating``: the judge detected cheating (``Verdict.pattern`` names the pattern). ``library``: the kernel
calls a library, and ``evaluation.libraries`` is "refuse". ``forbidden``: the kernel tried something that the sandbox
denies, or printed too much. ``error``: the evaluation itself failed, so the kernel may be correct.
"""


class Timing(Struct, frozen=True, omit_defaults=True, gc=False):
    """Times of repeated calls, in milliseconds."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    count: int


class CheckResult(Struct, frozen=True, omit_defaults=True, gc=False):
    """One check of the judge, with its result."""

    name: str
    passed: bool
    detail: str = ""


class BuildReport(Struct, frozen=True, omit_defaults=True, gc=False):
    """A build's result. ``log`` is the shortened compiler output. Registers and spills are per thread, from ptxas.

    ``code`` is the digest of the machine code (``engine.evaluation.build.code_hash``), "" if unknown. ``instructions``
    counts the machine instructions by kind (``engine.evaluation.build.instruction_counts``), {} if unknown.
    """

    ok: bool
    seconds: float
    command: str = ""
    cached: bool = False
    log: str = ""
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    code: str = ""
    instructions: dict[str, int] = {}


class Launch(Struct, frozen=True, omit_defaults=True, gc=False):
    """One kernel launch of a call, as the CUDA driver records it. Memory sizes are per block; ``local_bytes`` is per
    thread.

    ``blocks_per_sm`` is the number of resident blocks that the driver computes for this launch. The kernel's process
    reports these figures and could forge them (``engine.evaluation.sandbox.inside.launches``), so no check uses them.
    """

    kernel: Annotated[str, Meta(max_length=_MOST_NAME_CHARS)]
    grid: tuple[_Count, _Count, _Count]
    block: tuple[_Count, _Count, _Count]
    registers: _Count
    static_shared_bytes: _Count = 0
    dynamic_shared_bytes: _Count = 0
    local_bytes: _Count = 0
    blocks_per_sm: _Count = 0

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def shared_bytes(self) -> int:
        return self.static_shared_bytes + self.dynamic_shared_bytes


class KernelBenchVerdict(Struct, frozen=True, omit_defaults=True):
    """The result under KernelBench's own rules (``correctness/kernelbench_rules.py``), for display only.

    ``speedup`` is mean eager time / mean kernel time. "not applicable": the rules do not cover the problem. "not
    judged": the check did not complete, for example because the kernel's process died.
    """

    status: Literal["correct", "wrong", "not applicable", "not judged"]
    reason: str = ""
    speedup: float | None = None


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The judge's result for one variant.

    ``speedup`` is the median of reference time / kernel time over alternating pairs. ``speedup_low`` and
    ``speedup_high`` bound its 95% interval. ``sol_share`` is SOL / kernel time, shown as % SOL.
    ``pairs`` counts valid pairs; ``disturbed_pairs`` counts rejected pairs, which other programs slowed down.
    ``same_code_as`` names a variant with the same machine code. In that case, the judge did not run the kernel, so the
    verdict has no times. ``flags`` are remarks that do not affect the status ("other programs used 20% of the CPU").

    ``stage_s`` maps stages to seconds: queue, build, start, check, timing, kernelbench. The last four stages cover
    only the last timing process; ``repeats`` is the time of earlier processes and attempts. ``waiting`` is additional
    time in which other processes occupied the device. ``runs`` is the time in which the kernel or the reference ran.

    ``precision`` is the precision class of the outputs, "" if not measured: "fp64", "fp32", "tf32/fp16", "bf16" or
    "below bf16". Outputs in half precision have the classes "fp16", "bf16" or "below ...". ``fp64_error`` and
    ``eager_fp64_error`` are the rms errors that determine the class, relative to the outputs' rms. ``kernelbench`` is
    the verdict under KernelBench's rules; None if the kernel never ran. ``launches`` lists the GPU launches of one
    call; () if unknown.

    ``device`` is the device's model. In a cluster, ``host`` and ``device_id`` name the host and the device that judged
    the kernel. ``slow_host`` is None unless the host is too slow to compare its times with other hosts' times. For a
    slow host, it is the reference's time on ``host`` / the reference's time on the fastest other device. ``others`` is
    the share of the CPU that other programs used while the judge timed the kernel on a CPU; 0 on a GPU.
    """

    status: Status
    reason: str = ""
    pattern: str | None = None
    device: str = ""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    pairs: int = 0
    disturbed_pairs: int = 0
    kernel: Timing | None = None
    reference: Timing | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    sol_ms: float | None = field(default=None, name="floor_ms")
    sol_share: float | None = field(default=None, name="floor_share")
    checks: tuple[CheckResult, ...] = ()
    build: BuildReport | None = None
    stage_s: dict[str, float] = {}
    sandbox: str = ""
    flags: tuple[str, ...] = ()
    output_tail: str = ""
    same_code_as: str | None = None
    precision: str = ""
    fp64_error: float | None = None
    eager_fp64_error: float | None = None
    kernelbench: KernelBenchVerdict | None = None
    launches: tuple[Launch, ...] = ()
    host: str = ""
    device_id: str = ""
    slow_host: float | None = None
    others: float = 0.0

    @property
    def correct(self) -> bool:
        return self.status == "correct"

    def without_times(self) -> Verdict:
        """Return a copy of the verdict without times and speedups."""
        return replace(
            self,
            speedup=None,
            speedup_low=None,
            speedup_high=None,
            pairs=0,
            disturbed_pairs=0,
            kernel=None,
            reference=None,
            sol_share=None,
            others=0.0,
        )


def precision_in_words(name: str, error: float, eager_error: float) -> str:
    ratio = error / eager_error if eager_error else 0.0
    share = f", {ratio:{'.1f' if ratio < 10 else ',.0f'}} times eager's" if ratio else ""
    return f"{name}, root mean square error {error:.1e} against fp64{share}"


class Baseline(Struct, frozen=True, omit_defaults=True):
    """PyTorch's time for the problem: ``eager`` or ``compile``. ``failure``: why the time is missing. ``others``: for
    ``compile`` on a CPU, the share of the CPU that other programs used during the measurement; otherwise 0.
    ``eager_ms``: for ``compile`` on a CPU, eager's time right after the compiled model's, in milliseconds.
    """

    which: Literal["eager", "compile"]
    timing: Timing | None = None
    precision: str = "fp32"
    note: str = ""
    failure: str | None = None
    others: float = 0.0
    eager_ms: float | None = None


class Standing(Struct, frozen=True, omit_defaults=True):
    """A leading kernel's place in a runoff. ``ratio``: the kernel's time / the fastest kernel's time, as a median over
    repetitions. ``uncertain``: whether other programs disturbed the check of the kernel's times, or whether the ratio
    contradicts the verdicts.
    """

    variant: str
    median_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    tied: bool
    uncertain: bool = False

    @property
    def decides(self) -> bool:
        """Whether the ranking uses this place. Load only slows kernels, so an uncertain first place counts."""
        return not self.uncertain or self.ratio <= 1.0
