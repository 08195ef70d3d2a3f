"""An open problem in the judge: its reference, trials and buffers, and the measurements from opening the problem."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

import torch

from engine.evaluation.correctness.comparison import Tolerances
from engine.evaluation.correctness.kernelbench import KernelBenchTrials
from engine.evaluation.correctness.output_validation import check_writes
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.arena import Slot
from engine.evaluation.sandbox.reference_process import ReferenceProcess
from engine.evaluation.timing.call_batches import Compare, after_kernel, expected_outputs
from engine.evaluation.timing.call_overhead import CallOverhead, EmptyKernel


class ProblemContext:
    """An open problem.

    ``builds``: the cache of built kernels. ``eager_ms``, ``sol_ms``: eager's time and the SOL bound, in milliseconds.
    ``degenerate``: a description of trivial outputs that pass every check, or "" if none pass.
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
        """Do work in advance that would otherwise delay the first correct kernel. Out-of-memory errors propagate."""
        self.judged.find_outlier_sizes(Tolerances(self.settings.tolerance_fp32, self.settings.tolerance_other))
        with suppress(Exception):
            self.empty_kernel.call(CallOverhead())

    @property
    def untimed_calls(self) -> int:
        """Number of untimed calls, each on its own slot, before a timed call with launches from Python.

        Without untimed calls, these launches would take longer, because the processor has been doing other work.
        """
        if self.settings.kind != "cuda" or self.eager_ms is None or self.eager_ms > POLICY.device.untimed_up_to_ms:
            return 0
        return min(POLICY.device.untimed_calls, len(self.judged.arena.slots) - 1)

    def load_timed(self, problem: JudgedProblem, index: int, slot: Slot, seed: int, *, mean_zero: bool = False) -> None:
        """Load inputs that no call has seen (``JudgedProblem.load_mixed``) for a timed call.

        With ``mean_zero``, the inputs have mean zero. If kernels must be as precise as fp32, all inputs have mean zero
        where the problem permits it, because such inputs reveal precision.
        """
        problem.load_mixed(index, slot, seed)
        if (mean_zero or self.settings.precision == "fp32") and problem.takes_mean_zero:
            problem.centre(slot)

    def is_measured(self, problem: JudgedProblem, role: str) -> bool:
        """Return whether a timed call with inputs of this ``role`` reveals a kernel's precision.

        Inputs with outliers do not reveal precision. If the problem permits inputs with mean zero, only such inputs
        reveal precision.
        """
        is_general = self.settings.precision == "fp32" or not problem.takes_mean_zero
        return role == "mean zero" or (role == "drawn" and is_general)

    def untimed_slots(self, index: int) -> Sequence[int]:
        """Return the slots for the untimed calls before a call on slot ``index``, and fill these slots if necessary.

        These slots differ from each other and from ``index``. An untimed call therefore cannot leave an output for a
        later call, or write to a later call's buffers.
        """
        slots = self.judged.arena.slots
        chosen = random.sample([number for number in range(len(slots)) if number != index], self.untimed_calls)
        for slot in (slots[number] for number in chosen):
            if not slot.filled:
                self.judged.load_mixed(0, slot, self.judged.fresh_seed())
        return chosen

    def load_untimed(
        self, problem: JudgedProblem, untimed: Sequence[int], seed: int | None, check: Compare
    ) -> Callable[[], None]:
        """Load fresh inputs into the ``untimed`` slots.

        Return a function that checks one of the untimed calls, chosen at random.

        A kernel that skips untimed calls to hide time fails this check. ``seed``: the random seed of each call. Threat:
        clock.
        """
        slots = [problem.arena.slots[index] for index in untimed]
        loads = [partial(problem.load_mixed, 0, slot, problem.fresh_seed()) for slot in slots]
        for slot, load in zip(slots, loads, strict=True):
            load()
            slot.poison(0)
        if slots:
            problem.device.synchronize()

        def check_one() -> None:
            if not slots:
                return
            slot, load = secrets.choice(list(zip(slots, loads, strict=True)))

            def reference() -> list[torch.Tensor]:
                if seed is not None:
                    torch.manual_seed(seed)
                return expected_outputs(problem, slot)

            check_writes(slot)
            exact = partial(problem.in_double, slot, load)
            check(slot, after_kernel(slot, load, reference), 0, "an untimed call", exact)

        return check_one

    def evict(self) -> None:
        """Release memory whose content the judge can rebuild. The kernels' buffers stay."""
        self.judged.evict()
        self.__dict__.pop("kernelbench", None)
        self.reference_process.close()

    def close(self) -> None:
        """Release buffers and processes. Do not use the context afterward."""
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
        return ReferenceProcess(self.judged, self.settings, self.eager_ms, self._builds)

    @cached_property
    def kernelbench(self) -> KernelBenchTrials:
        """The trials for KernelBench's rules."""
        return KernelBenchTrials(self.judged, self.eager_ms)
