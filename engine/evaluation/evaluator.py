"""The interface between the search and an evaluator of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from engine.devices.fact import DeviceFact
from engine.problem.spec import Language, ProblemSpec
from engine.session.records.counters import KernelCounters
from engine.session.records.verdict import Baseline, Stage, Standing, Verdict


class Opened(Struct, frozen=True):
    """The judge's measurements from opening a problem: the eager baseline, and the SOL bound in milliseconds.

    ``degenerate``: a description of trivial outputs that pass every check, or "" if none pass.
    """

    eager: Baseline
    sol_ms: float | None
    degenerate: str = ""


Known = Callable[[str], Verdict | None]
"""A function that returns an earlier verdict by machine-code hash (``BuildReport.code``), or None for new code."""


class EvaluationError(Exception):
    """A failure of the evaluation itself (no compiler, no judge, an exception in the reference).

    The message says how to recover.

    ``variant``: the variant that failed in a runoff despite a correct verdict.
    """

    def __init__(self, reason: str, variant: str | None = None) -> None:
        super().__init__(reason)
        self.variant = variant


class CountersUnavailable(EvaluationError):
    """Hardware counters that the evaluator cannot read. ``lasting``: whether reading will fail for every kernel on this
    machine.
    """

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


class JudgeDied(EvaluationError):
    """A judge process that ended without an answer."""


class JudgeKilled(JudgeDied):
    """A judge that another process or the system killed. The problem is not at fault, so opening the problem again may
    succeed.
    """


class Evaluator(Protocol):
    """An object that builds, checks and times kernels. Tasks may call all methods concurrently; requests take turns on
    the device.
    """

    async def start(self) -> tuple[DeviceFact, ...]:
        """Find devices; check the compiler and the sandbox. Raises ``EvaluationError`` if evaluation is impossible."""
        ...

    @property
    def sandbox(self) -> str:
        """Return the active isolation layers ("user, net, pid namespaces; Landlock; seccomp")."""
        ...

    @property
    def width(self) -> int:
        """Number of concurrent evaluations that keep all builders and devices busy: one per builder, plus one per
        device. The number changes when hosts join or leave.
        """
        ...

    async def measure_device(self, device: DeviceFact) -> DeviceFact:
        """Return the device with its measured peaks: copy bandwidth in GB/s and matrix product rate in GFLOP/s.

        If ``device`` already has peaks from an earlier engine, these peaks stay unchanged, because SOL bounds depend on
        them.
        """
        ...

    async def open(self, problem: ProblemSpec, header: str, sol_ms: float | None = None) -> Opened:
        """Load the reference in the judge and time it in eager mode.

        Raises ``EvaluationError`` if the model raises, and ``JudgeKilled`` if another process kills the judge
        repeatedly. ``sol_ms``: the SOL bound from an earlier engine, so that every % SOL in a session has the same
        basis.
        """
        ...

    def begin_build(self, problem: ProblemSpec, header: str, language: Language, source: str) -> None:
        """Start building a kernel before its problem is open, if this disturbs no timing. A later :meth:`evaluate` uses
        the build.
        """
        ...

    async def evaluate(
        self,
        problem: ProblemSpec,
        language: Language,
        source: str,
        on_stage: Callable[[Stage], None],
        known: Known | None = None,
        on_verdict: Callable[[Verdict], None] | None = None,
        on_device: Callable[[str], None] | None = None,
    ) -> Verdict:
        """Build, check and time one kernel. Canceling the task ends its processes within a second.

        Errors in the kernel do not raise exceptions; the verdict reports them. The event loop calls ``on_stage`` for
        each stage, and ``known`` when the kernel is built and would run next. It calls ``on_verdict`` after a kernel
        has run, before ``known`` for the next kernel on the device. ``on_device`` receives the name of another host's
        device that runs the next stages.
        """
        ...

    async def runoff(self, problem: ProblemSpec, kernels: Mapping[str, tuple[Language, str]]) -> tuple[Standing, ...]:
        """Time correct kernels (variant id -> language, source) side by side. Return the standings, fastest first, with
        ties marked.
        """
        ...

    async def compile_baseline(self, problem: ProblemSpec) -> Baseline:
        """Time the reference compiled with ``torch.compile``, alone on the device."""
        ...

    async def counters(
        self, problem: ProblemSpec, language: Language, source: str, report: Path
    ) -> tuple[KernelCounters, ...]:
        """Read the hardware counters of a correct kernel with ncu, alone on the device. The kernel runs outside the
        sandbox, so it must have a correct verdict. ``report``: the path for ncu's report.

        Raises ``CountersUnavailable``.
        """
        ...

    async def evict(self) -> None:
        """Release the memory of all open problems. The judge reopens a problem before it judges another kernel of that
        problem.
        """
        ...

    async def close(self) -> None:
        """End every process. Idempotent."""
        ...
