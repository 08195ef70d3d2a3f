"""The verdict: what evaluation said of a variant, with its evidence. One frozen model, JSON in and out.

Times are milliseconds, memory is bytes, ``speedup`` is reference time / kernel time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from engine.factor import hardly_known, interval_factor, relative_width, speedup

UNJUDGED = ("cancelled", "error")
"""Statuses that say nothing about the kernel."""
BUSY = 0.15
"""Share of all cores that other programs may use before they are blamed for a time."""

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
"""``correct``: every check passed and it was timed. ``wrong``: outputs differ. ``cheating``: a false win was
found (``Verdict.pattern`` names it). ``library``: it calls one, and only work of its own counts
(``evaluation.libraries``). ``forbidden``: did what the sandbox denies, or printed without bound. ``error``: the
evaluation itself failed, which says nothing about the kernel."""


class Timing(Struct, frozen=True, omit_defaults=True, gc=False):
    """Times of repeated calls, in milliseconds."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    count: int


class Check(Struct, frozen=True, omit_defaults=True, gc=False):
    """One check of the judge: what was tried and what came out."""

    name: str
    passed: bool
    detail: str = ""


class BuildReport(Struct, frozen=True, omit_defaults=True, gc=False):
    """What the compiler said. ``log`` is its output, trimmed. Register and spill figures are per thread, from ptxas.

    ``code``: digest of the machine code (``engine.evaluation.code_hash``), "" where unknown.
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


class KernelBenchVerdict(Struct, frozen=True, omit_defaults=True):
    """What KernelBench's own rules say of the kernel (``engine.evaluation.kernelbench_rules``). Shown, never used.

    ``speedup``: mean eager time / mean kernel time of the calls that were timed. "not applicable": they cannot say
    anything about kernels of this problem. "not judged": the kernel's process was gone, say.
    """

    status: Literal["correct", "wrong", "not applicable", "not judged"]
    reason: str = ""
    speedup: float | None = None

    @property
    def outcome(self) -> str:
        """In a few words: "correct, 2.31x"."""
        factor = f", {speedup(self.speedup)}" if self.status == "correct" and self.speedup is not None else ""
        return self.status + factor

    @property
    def words(self) -> str:
        return f"{self.outcome} ({self.reason})" if self.reason else self.outcome


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What evaluation said of one variant.

    ``speedup`` is the median over alternating pairs of reference time / kernel time;
    ``speedup_low`` and ``speedup_high`` bound its 95 % interval. ``floor_share`` is floor time / kernel time.
    ``pairs`` of them count; ``disturbed_pairs`` do not, since something else slowed the machine meanwhile.
    ``same_code_as``: the variant whose machine code it has; it was not run, and has no times of its own.
    ``flags`` are remarks that do not change the status ("other programs used 20 % of the processor").
    ``stage_s`` gives seconds per stage: queue, build, start, check, timing, kernelbench; in ``waiting`` those, part of
    none of them, for which other processes kept the device until then; and in ``runs`` those in which kernel or
    reference ran.
    ``precision``: how exact it computes ("fp64", "fp32", "tf32", "fp16", "bf16", "below ..."), "" where that was not
    measured; ``fp64_error`` and ``eager_fp64_error`` are the errors behind it, root mean square relative to the
    outputs'.
    ``kernelbench``: the second verdict; None where the kernel did not get as far as being run.
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
    floor_ms: float | None = None
    floor_share: float | None = None
    checks: tuple[Check, ...] = ()
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

    @property
    def correct(self) -> bool:
        return self.status == "correct"

    def without_times(self) -> Verdict:
        """The same, as of a kernel that was not timed."""
        return replace(
            self,
            speedup=None,
            speedup_low=None,
            speedup_high=None,
            pairs=0,
            disturbed_pairs=0,
            kernel=None,
            reference=None,
            floor_share=None,
        )

    @property
    def counted_pairs(self) -> str:
        """``700``, ``480 of 700`` where the others were disturbed, "" where there are none."""
        among = f" of {self.pairs + self.disturbed_pairs}" if self.disturbed_pairs else ""
        return f"{self.pairs}{among}" if self.pairs else ""

    @property
    def relative_width(self) -> float:
        """Of the 95 % interval of the factor, over the factor; 0 where there is none. More than ``WIDE`` is much."""
        return relative_width(self.speedup, self.speedup_low, self.speedup_high)

    @property
    def factor(self) -> str:
        """Over eager, in words: ``1.57x``, ``~1.57x`` where it is hardly known, ``-`` where there is none."""
        return interval_factor(self.speedup, self.speedup_low, self.speedup_high)

    @property
    def hardly_known(self) -> bool:
        """Whether its factor is: the interval is wide."""
        return hardly_known(self.speedup, self.speedup_low, self.speedup_high)

    @property
    def precision_in_words(self) -> str:
        """Class and error, or "" where they were not measured."""
        if not self.precision or self.fp64_error is None:
            return ""
        return precision_in_words(self.precision, self.fp64_error, self.eager_fp64_error or 0.0)


def precision_in_words(name: str, error: float, eager_error: float) -> str:
    ratio = error / eager_error if eager_error else 0.0
    share = f", {ratio:{'.1f' if ratio < 10 else ',.0f'}} times eager's" if ratio else ""
    return f"{name}, root mean square error {error:.1e} against fp64{share}"


class Baseline(Struct, frozen=True, omit_defaults=True):
    """A PyTorch time for the problem: ``eager`` or ``compile``. ``failure`` says why there is none.

    ``others``: share of the processor that other programs used meanwhile, where that matters.
    """

    which: Literal["eager", "compile"]
    timing: Timing | None = None
    precision: str = "fp32"
    note: str = ""
    failure: str | None = None
    others: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether other programs had a hand in the time, as they have in a clock that they are blamed for."""
        return self.timing is not None and self.others > BUSY

    @property
    def disturbance(self) -> str:
        """That in words, "" where it is not so."""
        return f"timed while other programs used {self.others:.0%} of the processor" if self.disturbed else ""


class Standing(Struct, frozen=True, omit_defaults=True):
    """A leader's place in a final heat. ``ratio``: its time / the fastest leader's time, median over rounds."""

    variant: str
    median_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    tied: bool


NOT_FOR_THIS_SIZE = "not for this size"
"""Starts the message of a ``static_assert`` in a kernel that is meant for some sizes only: "...: needs ..."."""


class AtSizes(Struct, frozen=True, omit_defaults=True):
    """What came of a kernel at other sizes than those it was searched at. Times and factors only where it is correct.

    ``label``: what is meant by the sizes ("smaller", "odd", "larger"), or "". ``shapes``: of the inputs, in words.
    """

    label: str
    sizes: dict[str, int]
    shapes: str
    status: Status
    reason: str = ""
    kernel_ms: float | None = None
    eager_ms: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None

    @property
    def factor(self) -> str:
        """Over eager, in words."""
        return interval_factor(self.speedup, self.speedup_low, self.speedup_high)

    @property
    def unfit(self) -> bool:
        """Whether the kernel itself says that it is not for these sizes, rather than failing at them."""
        return self.status == "build_error" and self.reason.startswith(NOT_FOR_THIS_SIZE)

    @property
    def outcome(self) -> str:
        """The status in words."""
        return NOT_FOR_THIS_SIZE if self.unfit else self.status.replace("_", " ")


def only_searched_sizes(results: Sequence[AtSizes]) -> bool:
    """Whether the kernel was judged at other sizes and is right at none of them."""
    judged = [one for one in results if one.status not in UNJUDGED]
    return bool(judged) and all(one.speedup is None for one in judged)


def sizes_in_words(results: Sequence[AtSizes]) -> str:
    """One sentence: is the kernel right at other sizes, and does its win survive. "" where nothing was tried."""
    judged = [one for one in results if one.status not in UNJUDGED]
    right = [one for one in judged if one.status == "correct" and one.speedup is not None]
    failed = [f"{one.outcome} at {one.shapes}" for one in judged if one not in right]
    untried = [f"not judged at {one.shapes}" for one in results if one not in judged]
    if not judged:
        return "; ".join(untried)
    by_factor = [one.factor for one in sorted(right, key=lambda one: one.speedup or 0.0)]
    slower = [f"{one.factor} at {one.shapes}" for one in right if one.speedup is not None and one.speedup <= 1.0]
    if only_searched_sizes(results):
        words = ["right only at the searched sizes"]
    else:
        where = (
            f"all {len(judged)} other sizes"
            if len(right) == len(judged)
            else f"{len(right)} of {len(judged)} other sizes"
        )
        span = by_factor[0] + (f" to {by_factor[-1]}" if len(by_factor) > 1 else "")
        words = [f"right at {where}, {span} eager"]
        if slower:
            words.append("the win does not survive: " + ", ".join(slower))
    return "; ".join([*words, *failed, *untried])
