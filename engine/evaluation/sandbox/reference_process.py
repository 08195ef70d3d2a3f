"""A problem's reference in a process of its own, like the process of a Python kernel.

On a GPU, PyTorch launches a network's operators up to 15% more slowly in the judge's process than in a kernel's
process. A kernel that only copies the reference would therefore seem faster than the reference. Two processes of the
same kind launch operators equally fast.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from engine.evaluation.build.python_modules import CACHE, EXTENSIONS
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.inputs.mixing import copy_into
from engine.evaluation.judge.admission import intermediate_bytes
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.rejection import Rejected
from engine.evaluation.sandbox.arena import Arena, Slot
from engine.evaluation.sandbox.inside.cuda import CudaError
from engine.evaluation.sandbox.module_runner import ModuleRunner
from engine.evaluation.sandbox.resource_limits import limits_of
from engine.evaluation.sandbox.runner import RunnerEnded

_KERNEL = "\n\nModelNew = Model\n"
_SLOTS = 2
_DEVICE, _SANDBOX, _ADMISSION = POLICY.device, POLICY.sandbox, POLICY.admission


class ReferenceProcess:
    """The reference of ``problem`` in its own process, with buffers that no kernel shares. ``builds``: the build cache,
    where a later session deletes the files that a killed judge left.

    The first call to ``begin`` starts the process, which runs as long as the problem is open. If the process has
    failed too often, the judge does not start it again, and times the reference in the judge's process.
    """

    def __init__(self, problem: JudgedProblem, settings: JudgeSettings, eager_ms: float | None, builds: Path) -> None:
        self._problem, self._settings, self._eager_ms, self._builds = problem, settings, eager_ms, builds
        self.arena: Arena | None = None
        """The buffers of the process while it is running, otherwise None."""
        self._runner: ModuleRunner | None = None
        self._home: Path | None = None
        self._failures = 0

    @property
    def pid(self) -> int | None:
        """The reference process's id in the judge's PID namespace, or None if the process is not running."""
        return self._runner.pid if self._runner is not None else None

    @property
    def held_bytes(self) -> int:
        """The estimated device memory that the process occupies, in bytes."""
        return self._needed_bytes if self.arena is not None else 0

    @property
    def _needed_bytes(self) -> int:
        spec = self._problem.spec
        buffers = _SLOTS * sum(tensor.nbytes + 2 * _SANDBOX.redzone_bytes for tensor in spec.tensors)
        return buffers + intermediate_bytes(spec) + _ADMISSION.context_bytes

    def begin(self) -> None:
        """Start the process if it is not running, the reference's time is short, and enough memory is free."""
        if self._home is not None:
            try:
                os.utime(self._home)
            except OSError:  # Another session has removed the directory, because no kernel used it for minutes.
                self.close()
        if self._runner is not None or self._failures >= _DEVICE.apart_attempts:
            return
        if (self._eager_ms or 0.0) > _DEVICE.apart_up_to_ms:
            return
        if 2 * self._needed_bytes > self._problem.device.free_bytes():  # The kernel needs about as much memory.
            return
        try:
            self._start()
        except (RunnerEnded, CudaError, RuntimeError, MemoryError, OSError) as error:
            print(
                f"the judge times the reference itself, because the reference's process did not start: {error}",
                file=sys.stderr,
            )
            self._fail()

    def time_ms(self, slot: Slot, flushes: int, seed: int | None, untimed: int) -> float | None:
        """Time one call on the inputs and weights of ``slot``, after ``untimed`` calls on other buffers.

        Return the call's time in milliseconds, or None if the process is not running. Raises ``Rejected`` with the
        status "error" if the process ends, because later times in the judge's process would not be comparable.
        """
        if self._runner is None or self.arena is None:
            return None
        index = random.randrange(_SLOTS)
        try:
            if not self.arena.slots[index].filled:  # The first calls load libraries.
                for own in self.arena.slots:
                    _fill(own, slot)
                self._problem.device.synchronize()
                self._runner.call(range(_SLOTS), flushes, seed)
            _fill(self.arena.slots[index], slot)
            self._problem.device.synchronize()
            (took_ms,), _ = self._runner.call([index], flushes, seed, [1 - index] * untimed)
            return took_ms
        except RunnerEnded as ended:
            self._fail()
            reason = f"the reference's process failed: {ended}; judge the kernel again"
            raise Rejected("error", None, reason) from None

    def close(self) -> None:
        """End the process and release its buffers. Idempotent."""
        if self._runner is not None:
            self._runner.close()
        if self.arena is not None:
            self.arena.close()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
        self._runner = self.arena = self._home = None

    def _start(self) -> None:
        limits = limits_of(self._problem.spec, self._settings, self._eager_ms, module=True)
        mine = copy.copy(self._problem)
        mine.arena = self.arena = Arena(self._problem.spec.tensors, self._problem.device.kind, _SLOTS)
        # The file must remain, because a reference that compiles at its first call reads its source then.
        home = self._home = Path(tempfile.mkdtemp(prefix="build-", dir=self._builds))
        for name in (CACHE, EXTENSIONS):
            (home / name).mkdir()
        (home / "kernel.py").write_text(self._problem.spec.source + _KERNEL, errors="surrogateescape")
        self._runner = ModuleRunner(replace(self._settings, libraries="label"), limits, lambda: False)
        self._runner.load(home / "kernel.py", mine)

    def _fail(self) -> None:
        self._failures += 1
        self.close()


def _fill(own: Slot, slot: Slot) -> None:
    """Copy inputs and weights from ``slot`` to the process's own buffers."""
    copy_into([*own.inputs, *own.weights], [*slot.inputs, *slot.weights])
    own.filled = True
