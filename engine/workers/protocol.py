"""What the search asks of whoever evaluates kernels: this machine today, a cluster tomorrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from engine.events import DeviceFact, Stage
from engine.problem.spec import Form, ProblemSpec
from engine.verdict import Baseline, Standing, Verdict


class Opened(Struct, frozen=True):
    """What opening a problem on a device gave: the eager baseline and the floor in milliseconds.

    ``degenerate``: which kernels that compute nothing are taken for right, in words. ``tightened``: why the tolerance
    is smaller than configured.
    """

    eager: Baseline
    floor_ms: float | None
    degenerate: str = ""
    tightened: str = ""


Known = Callable[[str], Verdict | None]
"""The verdict for machine code that was judged before, by its digest (``BuildReport.code``); None for new code."""


class EvaluationError(Exception):
    """The evaluation itself failed (no compiler, judge gone, reference raised); says what, where, what to do.

    ``variant``: whose kernel, right when it was judged, did in a heat what it must not.
    """

    def __init__(self, reason: str, variant: str | None = None) -> None:
        super().__init__(reason)
        self.variant = variant


class JudgeDied(EvaluationError):
    """It ended without an answer."""


class JudgeKilled(JudgeDied):
    """Somebody else ended it, or the system did: no fault of the problem, which may well be opened another time."""


class Evaluator(Protocol):
    """Builds, checks and times kernels. All methods may be awaited concurrently; the device is taken in turn."""

    async def start(self) -> tuple[DeviceFact, ...]:
        """Find devices, check compiler and sandbox. Raises ``EvaluationError`` where nothing can be evaluated."""
        ...

    @property
    def sandbox(self) -> str:
        """The isolation in force, in words ("user, net, pid namespaces; Landlock; seccomp")."""
        ...

    async def measure_device(self, device: DeviceFact) -> DeviceFact:
        """The device with its measured peaks (copy bandwidth in GB/s, a large matrix product in GFLOP/s).

        Peaks that ``device`` has already, from an earlier engine, are kept: floors were computed with them.
        """
        ...

    async def open(self, problem: ProblemSpec, header: str, floor_ms: float | None = None) -> Opened:
        """Load the reference in the judge and time it in eager. Raises ``EvaluationError`` if the model raises,
        ``JudgeKilled`` if the judge was killed more than once meanwhile.

        ``floor_ms``: as an earlier engine found it, so that all shares of the floor in a session go by one figure.
        """
        ...

    async def evaluate(
        self,
        problem: ProblemSpec,
        form: Form,
        source: str,
        on_stage: Callable[[Stage], None],
        known: Known | None = None,
        on_verdict: Callable[[Verdict], None] | None = None,
    ) -> Verdict:
        """Build, check and time one kernel. Cancelling the task ends its processes within a second.

        Never raises for what a kernel did: that is the verdict. ``on_stage`` is called from the event loop, and so is
        ``known``, once the kernel is built and would be run next; ``on_verdict`` hears of the verdict of one that was
        run before another kernel gets the device and asks ``known``.
        """
        ...

    async def heat(self, problem: ProblemSpec, kernels: Mapping[str, tuple[Form, str]]) -> tuple[Standing, ...]:
        """Time correct kernels (variant id -> form, source) side by side; fastest first, ties marked."""
        ...

    async def compile_baseline(self, problem: ProblemSpec) -> Baseline:
        """``torch.compile`` of the reference, measured alone on the device."""
        ...

    async def close(self) -> None:
        """End every process. Idempotent."""
        ...
