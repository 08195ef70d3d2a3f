"""The judge's side of a ``.py`` kernel's runner.

Threats: late-work (the judge reads a kernel's results while its process is stopped), forged-answer, library.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import pickle
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import torch

from engine.evaluation.build.python_modules import CACHE, EXTENSIONS, starts_compilers
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.inspect.work import Ran
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.inside.python_kernel.order import InputPlaceholder, ModuleOrder
from engine.evaluation.sandbox.process_facts import files_at, instruction_addresses, mappings_of, not_its_own
from engine.evaluation.sandbox.resource_limits import Limits
from engine.evaluation.sandbox.runner import FORGED, Loaded, Runner, RunnerEnded
from engine.evaluation.sandbox.runner_process import RunnerProcess
from engine.evaluation.sandbox.warm_process import warm_process
from engine.problem.model import SEED

_SANDBOX = POLICY.sandbox
_UNREADABLE = "the judge cannot read forward's result from the kernel's process: return a tensor with its own memory"
_IDLE = """
import torch

class ModelNew(torch.nn.Module):
    __init__ = lambda self, *arguments, **named: torch.nn.Module.__init__(self)
    forward = lambda self, *arguments, **named: None
"""
_WORDS = {
    "none": "no weights",
    "state_dict": "weights are in the judge's buffers (the state dicts match)",
    "absent": "the module has no weights; the reference's weights are the same in all trials",
    "replay": "the module has its own weights, which are the same in all trials (the state dicts differ)",
}


class ModuleRunner(Runner):
    """A runner for a ``.py`` kernel that :func:`engine.evaluation.build.python_modules.build_module` has prepared."""

    def __init__(self, settings: JudgeSettings, limits: Limits, cancelled: Callable[[], bool]) -> None:
        self._settings = settings
        self.launches_from_python = settings.kind == "cuda"
        super().__init__(settings.kind, limits, cancelled)
        # None of the kernel's code has run in the process yet, so a failed read means that the machine forbids reading.
        self.reads_results = settings.kind == "cpu" and _may_read(self.pid)

    def _start(self, kind: str) -> RunnerProcess:
        return RunnerProcess(partial(warm_process(kind).fork, self._limits.isolate))

    def load(self, kernel: Path, problem: JudgedProblem) -> Loaded:
        may_call, home = self._settings.libraries == "label", kernel.parent
        compilers = starts_compilers(kernel.read_text(errors="replace"), self._settings.kind, libraries=may_call)
        try:
            order = pickle.dumps(module_order(kernel, problem, self._settings.threads))
        except Exception as error:
            raise RunnerEnded("error", f"the judge cannot pass the model's arguments to a runner: {error}") from None
        self._slots, self._strides = problem.arena.slots, problem.output_strides
        self._arena_inode = os.fstat(problem.arena.descriptor).st_ino
        readable = [str(home), *(path for path in sys.path if path and Path(path).is_dir())]
        writable = [str(home / CACHE)] if compilers else []
        ready = self._load(order, problem, readable=readable, writable=writable, compilers=compilers)
        self._next_call_compiles = compilers
        weights = ready.get("weights")
        if not isinstance(weights, str) or weights not in _WORDS:
            raise RunnerEnded("forbidden", FORGED)
        return Loaded(_WORDS[weights], weights in ("replay", "absent"))

    def _ask(self, order: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """On a CPU, read the result of ``forward`` while the process is stopped.

        Threat: late-work.
        """
        if not self.reads_results or "profile" in order:
            return super()._ask(order)
        answer, wall_ms = super()._ask(order | {"leave": True})
        called = [slot for slot, _ in groupby(order["slots"])]
        outputs = [pair for slot in called for pair in zip(self._slots[slot].outputs, self._strides, strict=True)]
        left = answer.get("left")
        if not isinstance(left, list) or len(left) != len(outputs):
            raise RunnerEnded("forbidden", FORGED)
        for (_, strides), address in zip(outputs, left, strict=True):
            if type(address) is not int or (address < 0 and strides is None) or abs(address) > sys.maxsize:
                raise RunnerEnded("forbidden", FORGED)
        spans = [(abs(address), output.nbytes) for (output, _), address in zip(outputs, left, strict=True)]
        try:
            foreign = not_its_own(mappings_of(self.pid), spans, self._arena_inode)
        except OSError:
            foreign = _UNREADABLE
        if foreign is not None:  # Reading the result would do the copying that the kernel skipped.
            raise RunnerEnded("forbidden", foreign)
        for (output, strides), address in zip(outputs, left, strict=True):
            self._read(output, address, strides)
        super()._ask({"slots": order["slots"][:1], "forget": True})
        return answer, wall_ms

    def _read(self, output: torch.Tensor, address: int, strides: tuple[int, ...] | None) -> None:
        """Fill ``output`` from the stopped process; a negative ``address`` marks an output permuted by ``strides``."""
        target = output if address >= 0 or strides is None else torch.empty_like(output)
        if output.numel() and not _read_memory(self.pid, abs(address), target.data_ptr(), target.nbytes):
            raise RunnerEnded("forbidden", _UNREADABLE)
        if target is not output and strides is not None:
            output.copy_(target.as_strided(output.shape, strides))

    def what_ran(self, seed: int | None) -> Ran | None:
        """Return the report on the code that ran in a call on the first slot, or None if no profiler works. Raises
        ``RunnerEnded``.
        """
        answer, _ = self._ask({"slots": [0], "seed": seed, "profile": True})
        if (said := answer.get("ran")) is None:
            return None
        with contextlib.suppress(msgspec.ValidationError, TypeError):
            ran = msgspec.convert({**said, "looked_up": answer.get("looked_up")}, Ran)
            if all(0 <= us < math.inf for us in ran.times()):
                return ran
        raise RunnerEnded("forbidden", FORGED)

    def profiler_works(self, problem: JudgedProblem) -> bool:
        """Return whether a profiler works in a similar runner with an idle module. Raises ``RunnerEnded``."""
        warm = warm_process(self._settings.kind)
        if warm.profiler_works is None:
            with tempfile.TemporaryDirectory() as directory:
                kernel = Path(directory, "kernel.py")
                kernel.write_text(_IDLE)
                with ModuleRunner(self._settings, self._limits, self._cancelled) as another:
                    another.load(kernel, problem)
                    # A single attempt may fail by chance.
                    looks = (another.what_ran(None) is not None for _ in range(2))
                    warm.profiler_works = any(looks)
        return warm.profiler_works

    def sampled_code(self) -> Counter[str] | None:
        """Sample the running code of all threads during repeated calls. Return a count per file.

        Returns None if this machine forbids inspection of the kernel's process. Raises ``RunnerEnded``.
        """
        if not self.reads_results:
            return None
        addresses: list[int] = []
        began, looks = self._wake({"slots": [0], "seed": None, "repeat": True}), 0
        while True:
            few = len(addresses) < _SANDBOX.least_seen
            most_s = min(_SANDBOX.most_sampled_s if few else _SANDBOX.sampled_s, self._limits.call_s)
            if (looks >= _SANDBOX.samples and not few) or time.perf_counter() > began + most_s:
                break
            if select.select([self._control], [], [], _SANDBOX.between_samples_s)[0]:
                break
            if self._cancelled():
                raise RunnerEnded("cancelled", "cancelled")
            self._drain()  # A kernel that prints would block on a full pipe.
            looks += 1
            self._signal(signal.SIGSTOP)
            addresses += instruction_addresses(self.pid)
            self._signal(signal.SIGCONT)
        self._send({"enough": True})
        self._stand_still(self._answer(self._limits.call_s, "call"))
        try:
            return files_at(self.pid, addresses)
        except OSError:
            return None


def module_order(kernel: Path, problem: JudgedProblem, threads: int) -> ModuleOrder:
    """Return the order for the runner of ``kernel``. The order does not contain the reference."""
    reference, home = problem.source.reference, kernel.parent
    placeholders = [InputPlaceholder(index) for index in range(len(problem.spec.inputs))]
    return ModuleOrder(
        path=str(kernel),
        extensions=str(home / EXTENSIONS),
        cache=str(home / CACHE),
        tensors=problem.spec.tensors,
        strides=problem.output_strides,
        saved=list(reference.model.state_dict()),
        init_arguments=reference.init_arguments,
        arguments=reference.arguments(reference.with_tensors(placeholders)),
        seed=SEED,
        threads=threads,
    )


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads(), "reader")


def _read_memory(pid: int, address: int, to: int, size: int) -> bool:
    """Read ``size`` bytes at ``address`` in another process, with several threads if there are many bytes.

    Return whether the read succeeded.
    """
    span, one, none = ctypes.c_size_t * 2, ctypes.c_ulong(1), ctypes.c_ulong(0)
    read_from = ctypes.CDLL(None).process_vm_readv
    read_from.restype = ctypes.c_ssize_t
    share = -(-size // torch.get_num_threads())
    part = min(max(share, _SANDBOX.read_part_bytes), _SANDBOX.read_part_most_bytes)

    def read(start: int) -> bool:
        count = min(part, size - start)
        here, there = span(to + start, count), span(address + start, count)
        return bool(read_from(pid, here, one, there, one, none) == count)

    found = map(read, range(0, size, part)) if size <= part else _readers().map(read, range(0, size, part))
    return all(list(found))  # list() waits for every thread, even after a failure.


def _may_read(pid: int) -> bool:
    """Return whether the machine lets this process read the memory of the waiting process ``pid``."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        address = int(Path(f"/proc/{pid}/maps").read_text().partition("-")[0], 16)
        word = ctypes.c_uint64()
        return _read_memory(pid, address, ctypes.addressof(word), ctypes.sizeof(word))
    return False


def runner_for(kernel: Path, settings: JudgeSettings, limits: Limits, cancelled: Callable[[], bool]) -> Runner:
    """Return the runner for ``kernel``, which is a shared library or a module's ``.py`` file."""
    if kernel.suffix == ".py":
        return ModuleRunner(settings, limits, cancelled)
    return Runner(settings.kind, limits, cancelled)


def copies_after_the_clock_ms(problem: JudgedProblem, runner: Runner) -> float:
    """Return the milliseconds that a ``.py`` kernel's runner spends on the outputs after the runner's clock has
    stopped.

    The runner copies the outputs or, if the judge reads the outputs, only checks each output.
    """
    return _SANDBOX.looked_at_ms * len(problem.spec.outputs) if runner.reads_results else problem.copy_ms


def copied_outputs(problem: JudgedProblem, runner: Runner) -> int:
    """Return the number of outputs that a ``.py`` kernel's runner copies."""
    return 0 if runner.reads_results else len(problem.spec.outputs)
