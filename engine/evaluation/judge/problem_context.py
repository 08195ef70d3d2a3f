"""An open problem in the judge: its reference, trials and buffers, and the measurements from opening the problem."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from engine.evaluation.correctness.comparison import Tolerances
from engine.evaluation.correctness.kernelbench import KernelBenchTrials
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.arena import Slot
from engine.evaluation.sandbox.reference_process import ReferenceProcess
from engine.evaluation.timing.call_overhead import CallOverhead, EmptyKernel


class ProblemContext:
    """An open problem.

    ``builds``: the cache of built kernels. ``eager_ms``, ``sol_ms``: eager's time and the SOL bound, in milliseconds.
    ``degenerate``: a description of trivial outputs that pass every check, or "".
    """

    def __init__(
        self,
        judged: JudgedProblem,
        settings: JudgeSettings,
        builds: Path,
        eager_ms: float | None,
        sol_ms: float | None,
        degenerate: str,
    ) -> None:
        self.judged, self.eager_ms, self.sol_ms, self.settings = judged, eager_ms, sol_ms, settings
        self._builds = builds
        self.flags = (f"degenerate problem: {degenerate} pass every check",) if degenerate else ()
        """Remarks to add to each verdict on the problem."""

    def prepare(self) -> None:
        """Do work in advance for which the first correct kernel would otherwise wait. Out-of-memory errors
        propagate.
        """
        self.judged.find_outlier_sizes(Tolerances(self.settings.tolerance_fp32, self.settings.tolerance_other))
        with suppress(Exception):
            self.empty_kernel.call(CallOverhead())

    @property
    def has_untimed_calls(self) -> bool:
        """Whether untimed calls precede a timed call with launches from Python. Otherwise, these launches would take
        longer, because the processor has been doing other work.

        Untimed calls need a second slot.
        """
        is_short = self.eager_ms is not None and self.eager_ms <= POLICY.device.untimed_up_to_ms
        return self.settings.kind == "cuda" and is_short and len(self.judged.arena.slots) > 1

    def load_timed(self, problem: JudgedProblem, index: int, slot: Slot, seed: int, *, mean_zero: bool = False) -> None:
        """Load inputs that no call has seen (``JudgedProblem.load_mixed``) for a timed call.

        On request, the inputs have mean zero. If kernels must be as precise as fp32, all inputs have mean zero, because
        such inputs reveal precision.
        """
        problem.load_mixed(index, slot, seed)
        if (mean_zero or self.settings.precision == "fp32") and problem.takes_mean_zero:
            problem.centre(slot)

    def is_measured(self, problem: JudgedProblem, role: str) -> bool:
        """Return whether a timed call with inputs of this ``role`` reveals a kernel's precision.

        Inputs with outliers do not reveal precision. If the problem permits inputs with mean zero, only such inputs do.
        """
        is_general = self.settings.precision == "fp32" or not problem.takes_mean_zero
        return role == "mean zero" or (role == "drawn" and is_general)

    def untimed_slots(self, index: int) -> Sequence[int]:
        """Return the slots for the untimed calls before a call on slot ``index``, or () if there are none.

        These slots differ from ``index``, so that an untimed call leaves no output for the timed call, and does not
        write the timed call's buffers.
        """
        others = [number for number, slot in enumerate(self.judged.arena.slots) if slot.filled and number != index]
        if not self.has_untimed_calls or not others:
            return ()
        return random.choices(others, k=POLICY.device.untimed_calls)

    def evict(self) -> None:
        """Release memory whose content the judge can rebuild. The kernels' buffers stay."""
        self.judged.evict()
        self.__dict__.pop("kernelbench", None)
        self.reference_process.close()

    def close(self) -> None:
        """Release buffers and processes. Do not use the context afterwards."""
        self.empty_kernel.close()
        self.reference_process.close()
        self.judged.close()

    @cached_property
    def empty_kernel(self) -> EmptyKernel:
        """The empty kernel that measures the overhead of calls."""
        return EmptyKernel(self.judged, self.settings, self._builds)

    @cached_property
    def reference_process(self) -> ReferenceProcess:
        """The process in which the judge times the reference for kernels that launch from Python."""
        return ReferenceProcess(self.judged, self.settings, self.eager_ms)

    @cached_property
    def kernelbench(self) -> KernelBenchTrials:
        """The trials for KernelBench's rules."""
        return KernelBenchTrials(self.judged, self.eager_ms)
