"""A problem's reference in a process of its own, like the process of a Python kernel.

On a GPU, PyTorch launches a network's operators up to 15% more slowly in the judge's process than in a kernel's. A
kernel that only copies the reference would therefore seem faster than the reference. Two processes of the same kind
launch equally fast.
"""

from __future__ import annotations

import copy
import random
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge.admission import intermediate_bytes
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.arena import Arena, Slot
from engine.evaluation.sandbox.module_runner import ModuleRunner
from engine.evaluation.sandbox.resource_limits import limits_of
from engine.evaluation.sandbox.runner import RunnerEnded
from engine.evaluation.timing.statistics import ReferenceTimes

_KERNEL = "\n\nModelNew = Model\n"
_SLOTS = 2


class ReferenceProcess:
    """The reference of ``problem`` in its own process, with buffers that no kernel shares.

    The process starts at the first call of ``begin``, and runs as long as the problem is open. If the process cannot
    start, or ends, the judge times the reference in its own process.
    """

    def __init__(self, problem: JudgedProblem, settings: JudgeSettings, eager_ms: float | None) -> None:
        self._problem, self._settings, self._eager_ms = problem, settings, eager_ms
        self.arena: Arena | None = None
        """The buffers of the process, while it runs."""
        self._runner: ModuleRunner | None = None
        self._failed = False

    @property
    def pid(self) -> int | None:
        """The process id in this process's namespace, or None if no process runs."""
        return self._runner.pid if self._runner is not None else None

    @property
    def held_bytes(self) -> int:
        """The device memory that the process occupies, estimated."""
        if self.arena is None:
            return 0
        return self.arena.nbytes + intermediate_bytes(self._problem.spec) + POLICY.admission.context_bytes

    def begin(self) -> None:
        """Start the process for a short reference, if memory suffices and no process runs."""
        if self._runner is not None or self._failed or (self._eager_ms or 0.0) > POLICY.device.apart_up_to_ms:
            return
        spec = self._problem.spec
        needed_bytes = _SLOTS * sum(tensor.nbytes for tensor in spec.tensors) + intermediate_bytes(spec)
        if needed_bytes > self._problem.device.spare_bytes():
            return
        try:
            self._start()
        except (RunnerEnded, RuntimeError, MemoryError, OSError) as error:
            self._give_up(error)

    def times(self, slot: Slot, flushes: int, seed: int | None, untimed: int) -> ReferenceTimes | None:
        """Time one call on the inputs and weights of ``slot``, after ``untimed`` calls on other buffers. Return None
        without a process.
        """
        if self._runner is None or self.arena is None:
            return None
        index = random.randrange(_SLOTS)
        for number, own in enumerate(self.arena.slots):
            if number == index or not own.filled:
                self._fill(own, slot)
        self._problem.device.synchronize()
        try:
            warm = [1 - index] * untimed
            return ReferenceTimes(*self._runner.launch_times(index, flushes, seed, warm))
        except RunnerEnded as ended:
            self._give_up(ended)
            return None

    def close(self) -> None:
        """End the process and release its buffers. Idempotent."""
        if self._runner is not None:
            self._runner.close()
        if self.arena is not None:
            self.arena.close()
        self._runner = self.arena = None

    def _start(self) -> None:
        limits = limits_of(self._problem.spec, self._settings, self._eager_ms, module=True)
        mine = copy.copy(self._problem)
        mine.arena = self.arena = Arena(self._problem.spec.tensors, self._problem.device.kind, _SLOTS)
        self._runner = ModuleRunner(replace(self._settings, libraries="label"), limits, lambda: False)
        with tempfile.TemporaryDirectory() as directory:
            kernel = Path(directory, "kernel.py")
            kernel.write_text(self._problem.spec.source + _KERNEL, errors="surrogateescape")
            self._runner.load(kernel, mine)

    def _fill(self, own: Slot, slot: Slot) -> None:
        for target, source in zip((*own.inputs, *own.weights), (*slot.inputs, *slot.weights), strict=True):
            target.copy_(source)
        own.filled = True

    def _give_up(self, error: Exception) -> None:
        print(f"the judge times the reference itself, because its process failed: {error}", file=sys.stderr)
        self._failed = True
        self.close()
