"""A problem as the judge holds it: reference, trials and buffers, and what was measured of it when it was opened."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import cached_property

from msgspec.structs import replace

from engine.evaluation.arena import Slot
from engine.evaluation.control import Control, EmptyKernel
from engine.evaluation.device import COLD_UP_TO_MS
from engine.evaluation.kernelbench import KernelBenchTrials
from engine.evaluation.messages import JudgeSettings
from engine.evaluation.null_kernels import NullResult
from engine.evaluation.precision import Gauge
from engine.evaluation.trials import JudgedProblem


class OpenedProblem:
    """``settings``: the judge's, with the tolerances of this problem. Milliseconds: eager's, and of the floor."""

    def __init__(
        self,
        judged: JudgedProblem,
        settings: JudgeSettings,
        eager_ms: float | None,
        floor_ms: float | None,
        nulls: NullResult,
    ) -> None:
        self.judged, self.eager_ms, self.floor_ms, self.nulls = judged, eager_ms, floor_ms, nulls
        full, half = nulls.tolerances.full, nulls.tolerances.half
        self._gauges: dict[bool, Gauge] = {}
        self.settings = replace(settings, tolerance_fp32=full, tolerance_other=half)

    def prepare(self) -> None:
        """Make now what the first kernel that is right would wait for.

        Never raises: what the model raises is said of the kernel that is judged by it.
        """
        with suppress(Exception):
            self.judged.find_large(self.nulls.tolerances)
        with suppress(Exception):
            self.kernelbench.prepare()
        with suppress(Exception):
            _ = self.gauge(self.judged)
        with suppress(Exception):
            self.empty_kernel.call(Control())

    @property
    def runs_cold(self) -> bool:
        """Whether what Python launches is to run once before it is timed, as the processor did other things before."""
        is_short = self.eager_ms is not None and self.eager_ms <= COLD_UP_TO_MS
        return self.settings.kind == "cuda" and is_short and not self.judged.mutates

    def load_timed(self, problem: JudgedProblem, index: int, slot: Slot, seed: int) -> None:
        """Load what no call has seen (``JudgedProblem.load_mixed``) for a timed call. Where kernels must be as exact as
        fp32, it is of mean zero as the probes are: who tells them apart is timed with what it does on those."""
        problem.load_mixed(index, slot, seed)
        if self.settings.precision == "fp32" and "centred" in problem.kinds:
            problem.centre(slot)

    def warming_slot(self, index: int) -> int | None:
        """On which slot a call comes before one on slot ``index``: another one, so that it leaves no answer for that;
        the same where there is no other. None where none is needed."""
        if not self.runs_cold:
            return None
        others = [number for number, slot in enumerate(self.judged.arena.slots) if slot.filled and number != index]
        return random.choice(others) if others else index

    def close(self) -> None:
        """Give up buffers and processes. Nothing of it must be used after it."""
        self.empty_kernel.close()
        self.judged.close()

    @cached_property
    def empty_kernel(self) -> EmptyKernel:
        """What calls cost beside a kernel."""
        return EmptyKernel(self.judged, self.settings)

    def gauge(self, problem: JudgedProblem) -> Gauge:
        """The probes for the precision of kernels; others for those that keep their weights (``problem`` says so)."""
        made = self._gauges.get(problem.keeps_weights)
        if made is None:
            made = Gauge(problem, self.eager_ms, asked=self.settings.precision == "fp32")
            self._gauges[problem.keeps_weights] = made
        return made

    @cached_property
    def kernelbench(self) -> KernelBenchTrials:
        """What KernelBench's rules are tried on."""
        return KernelBenchTrials(self.judged, self.eager_ms)
