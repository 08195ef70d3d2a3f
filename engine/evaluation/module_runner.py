"""Runners of ``.py`` kernels, from the judge's side: forked from a warm process that has torch imported."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from engine.evaluation.mappings import mappings_of, not_its_own
from engine.evaluation.messages import JudgeSettings
from engine.evaluation.modules import CACHE, EXTENSIONS, starts_compilers
from engine.evaluation.pages import unwritten_bytes
from engine.evaluation.runner import wire
from engine.evaluation.runner.order import BufferOrder, ModuleOrder, Slotted
from engine.evaluation.sandbox import FORGED, Limits, Loaded, Process, Runner, RunnerEnded, cores, runner_environment
from engine.evaluation.trials import JudgedProblem
from engine.problem.model import SEED

_ROOT = Path(__file__).parents[2]
_START_S = 60.0
_LEAST_PART_BYTES = 1 << 20
_ADDRESSES = 1 << 63
_LEAST_UNWRITTEN_BYTES = 1 << 18
"""What is left unwritten of less than this is not looked at: some microseconds."""
_LOOKED_AT_MS = 0.004
"""Type, shape and address of an output; seen with 63 of them."""
_WORDS = {
    "none": "no weights",
    "state_dict": "weights in the judge's buffers (the state dicts match)",
    "absent": "has none of the reference's weights, which are the same in all trials",
    "replay": "its own weights, drawn as the reference's (the state dicts differ): the same in all trials",
}


class Forked:
    """The outermost process of a runner: a child of the warm process, watched through a pidfd."""

    def __init__(self, pid: int, watch: int | None) -> None:
        self.pid = pid
        self._watch = watch
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; its code is known to its parent only. Raises ``subprocess.TimeoutExpired``."""
        deadline = time.monotonic() + (timeout if timeout is not None else 3600.0)
        while self.returncode is None and not self._ended(deadline - time.monotonic()):
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("runner", timeout or 0.0)
        self.returncode = 0
        if self._watch is not None:
            os.close(self._watch)
            self._watch = None
        return 0

    def _ended(self, seconds: float) -> bool:
        if self._watch is not None:
            return bool(select.select([self._watch], [], [], max(seconds, 0.0))[0])
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 0)
            time.sleep(0.005)
            return False
        return True


class WarmProcess:
    """The process that runners are forked from; started at the first ``.py`` kernel, again if it is gone."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        atexit.register(self.stop)

    def fork(self, isolate: bool, descriptors: tuple[int, int, int]) -> Forked:
        """A new runner with these descriptors: control socket, status pipe, output. Raises ``RunnerEnded``."""
        for last in (False, True):
            requests = self._running()
            try:
                wire.send(requests, {"kind": self._kind, "isolate": isolate}, descriptors)
                if select.select([requests], [], [], _START_S)[0]:
                    received = wire.receive(requests)
                    if received is not None:
                        message, watches = received
                        return Forked(int(message["pid"]), watches[0] if watches else None)
            except OSError:
                pass
            self.stop()
            if last:
                break
        reason = (
            "the process that runners of .py kernels come from does not start; it prints why (a session's engine.log)"
        )
        raise RunnerEnded("error", reason)

    def stop(self) -> None:
        """End it and, through it, its runners. Idempotent."""
        process, self._process = self._process, None
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()

    def _running(self) -> socket.socket:
        if self._requests is not None and self._process is not None and self._process.poll() is None:
            return self._requests
        self.stop()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "engine.evaluation.runner.zygote", str(theirs.fileno()), cores()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                env={**runner_environment(self._kind), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        return self._requests


@cache
def warm_process(kind: str) -> WarmProcess:
    """The one warm process of this judge."""
    return WarmProcess(kind)


class ModuleRunner(Runner):
    """A runner for a ``.py`` kernel that :func:`engine.evaluation.modules.build_module` has prepared."""

    def __init__(self, settings: JudgeSettings, limits: Limits, cancelled: Callable[[], bool]) -> None:
        self._settings = settings
        self.goes_cold = settings.kind == "cuda"
        self._zeroed_ms = 0.0
        super().__init__(settings.kind, limits, cancelled, reports=True)
        # Nothing of the kernel's has run there yet, so it is the machine that says no.
        self.reads_results = settings.kind == "cpu" and self.pid is not None and _may_read(self.pid)

    def _start(self, kind: str, control: int, status: int, output: int) -> Process:
        return warm_process(kind).fork(self._limits.isolate, (control, status, output))

    def load(self, kernel: Path, problem: JudgedProblem) -> Loaded:
        order = module_order(kernel, problem, self._settings, 2 * self._limits.data_bytes)
        try:
            data = pickle.dumps(order)
        except Exception as error:
            raise RunnerEnded("error", f"the model's arguments cannot be handed to a runner: {error}") from None
        memory = os.memfd_create("order", os.MFD_CLOEXEC)
        try:
            os.write(memory, data)
            os.lseek(memory, 0, os.SEEK_SET)
            self._arena_bytes = problem.arena.nbytes
            self._slots, self._strides = problem.arena.slots, problem.output_strides
            self._arena_inode = os.fstat(problem.arena.descriptor).st_ino
            ready = self._loaded({}, memory, problem.arena.descriptor)
        finally:
            os.close(memory)
        weights = ready.get("weights")
        if not isinstance(weights, str) or weights not in _WORDS:
            raise RunnerEnded("forbidden", FORGED)
        return Loaded(_WORDS[weights], weights in ("replay", "absent"))

    def call(
        self, slots: Sequence[int], flushes: int = 0, seed: int | None = None, warm: int | None = None
    ) -> tuple[list[float], float]:
        """As any other's; but zeros that nobody has written, which the judge's reading makes, are added to both times
        at what writing them takes the judge."""
        self._zeroed_ms = 0.0
        own_ms, wall_ms = super().call(slots, flushes, seed, warm)
        own_ms[-1] += self._zeroed_ms
        return own_ms, wall_ms + self._zeroed_ms

    def _ask(self, order: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """On a CPU what ``forward`` returned is read while the process stands still, and only then given up."""
        if not self.reads_results or "operators" in order:
            return super()._ask(order)
        answer, wall_ms = super()._ask(order | {"leave": True})
        called = [slot for slot, _ in groupby(order["slots"])]
        outputs = [pair for slot in called for pair in zip(self._slots[slot].outputs, self._strides, strict=True)]
        left = answer.get("left")
        if not isinstance(left, list) or len(left) != len(outputs):
            raise RunnerEnded("forbidden", FORGED)
        for (_, strides), address in zip(outputs, left, strict=True):
            if type(address) is not int or (address < 0 and strides is None) or abs(address) >= _ADDRESSES:
                raise RunnerEnded("forbidden", FORGED)
        self._look_behind([(abs(address), output.nbytes) for (output, _), address in zip(outputs, left, strict=True)])
        for (output, strides), address in zip(outputs, left, strict=True):
            self._zeroed_ms += self._zero_ms(output, address)
            self._read(output, address, strides)
        super()._ask({"slots": order["slots"][:1], "forget": True})
        return answer, wall_ms

    def _look_behind(self, spans: list[tuple[int, int]]) -> None:
        """Raises ``RunnerEnded`` where the judge's reading would make the copy that the kernel has not made."""
        try:
            found = not_its_own(mappings_of(self.pid or 0), spans, self._arena_inode)
        except OSError:
            found = "what forward returned cannot be read from its process"
        if found is not None:
            raise RunnerEnded("forbidden", found)

    def _zero_ms(self, output: torch.Tensor, address: int) -> float:
        """Milliseconds that it takes to write as many zeros into ``output`` as are unwritten at ``address``."""
        if self.pid is None or output.nbytes < _LEAST_UNWRITTEN_BYTES:
            return 0.0
        unwritten = unwritten_bytes(self.pid, abs(address), output.nbytes)
        if not unwritten:
            return 0.0
        part = output.view(-1).view(torch.uint8)[:unwritten]
        started = time.perf_counter()
        part.zero_()
        return 1e3 * (time.perf_counter() - started)

    def _read(self, output: torch.Tensor, address: int, strides: tuple[int, ...] | None) -> None:
        """Fill ``output`` from the stopped process, permuted by ``strides`` where ``address`` is negative."""
        target = output if address >= 0 or strides is None else torch.empty_like(output)
        if not output.numel():
            return
        if self.pid is None or not _read_in_parts(self.pid, abs(address), target.data_ptr(), target.nbytes):
            raise RunnerEnded("forbidden", "what forward returned cannot be read from its process")
        if target is not output and strides is not None:
            output.copy_(target.as_strided(output.shape, strides))

    def operators(self, seed: int | None) -> list[str] | None:
        """PyTorch's operators that did work in one call on what the first slot holds; None: no profiler looked.

        Raises ``RunnerEnded``.
        """
        answer, _ = self._ask({"slots": [0], "flushes": 0, "seed": seed, "operators": True})
        names = answer.get("operators")
        if names is None:
            return None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise RunnerEnded("forbidden", FORGED)
        return [name[:100] for name in names]


def module_order(kernel: Path, problem: JudgedProblem, settings: JudgeSettings, data_bytes: int) -> ModuleOrder:
    """What the runner of ``kernel`` is told; the reference is no part of it."""
    reference, home = problem.reference, kernel.parent
    may_call = settings.libraries == "label"
    compiles = starts_compilers(kernel.read_text(errors="replace"), settings.kind, libraries=may_call)
    outputs = [spec.name for spec in problem.spec.outputs]
    strides = dict(zip(outputs, problem.output_strides, strict=True))
    placeholders = [Slotted(index) for index in range(len(problem.spec.inputs))]
    extensions, compiled = home / EXTENSIONS, home / CACHE
    return ModuleOrder(
        path=str(kernel),
        extensions=str(extensions),
        cache=str(compiled),
        arena_bytes=problem.arena.nbytes,
        slots=problem.arena.offsets,
        buffers=[
            BufferOrder(
                spec.name, spec.role, spec.dtype, spec.shape, spec.source_name, spec.mutated, strides.get(spec.name)
            )
            for spec in problem.spec.tensors
        ],
        saved=list(reference.model.state_dict()),
        init_arguments=reference.init_arguments,
        arguments=reference.arguments(reference.with_tensors(placeholders)),
        seed=SEED,
        threads=settings.threads,
        data_bytes=data_bytes,
        readable=[str(home), *(path for path in sys.path if path and Path(path).is_dir())],
        writable=[str(compiled)] if compiles else [],
        compiles=compiles,
    )


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads(), "reader")


def _read_in_parts(pid: int, address: int, to: int, size: int) -> bool:
    """As :func:`_read_memory`, on all threads where there is much to read."""
    part = max(-(-size // torch.get_num_threads()), _LEAST_PART_BYTES)
    if size <= part:
        return _read_memory(pid, address, to, size)
    parts = [
        _readers().submit(_read_memory, pid, address + start, to + start, min(part, size - start))
        for start in range(0, size, part)
    ]
    found = [one.result() for one in parts]  # all are done then, also where one has failed
    return all(found)


def _read_memory(pid: int, address: int, to: int, size: int) -> bool:
    """Whether all ``size`` bytes at ``address`` of another process were read."""
    libc = ctypes.CDLL(None)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    one, flags, done = ctypes.c_ulong(1), ctypes.c_ulong(0), 0
    while done < size:  # at most 2 GiB at once
        here, there = _Span(to + done, size - done), _Span(address + done, size - done)
        count = libc.process_vm_readv(pid, ctypes.byref(here), one, ctypes.byref(there), one, flags)
        if count <= 0:
            return False
        done += count
    return True


def _may_read(pid: int) -> bool:
    """Whether this process may read the memory of another, which waits: the machine may forbid it."""
    with contextlib.suppress(OSError, StopIteration, AttributeError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        address = int(next(line for line in lines if " rw" in line).partition("-")[0], 16)
        word = ctypes.c_uint64()
        return _read_memory(pid, address, ctypes.addressof(word), ctypes.sizeof(word))
    return False


def runner_for(kernel: Path, settings: JudgeSettings, limits: Limits, cancelled: Callable[[], bool]) -> Runner:
    """The runner that ``kernel``'s form needs: a shared library, or the ``.py`` file of a module."""
    if kernel.suffix == ".py":
        return ModuleRunner(settings, limits, cancelled)
    return Runner(settings.kind, limits, cancelled)


def copies_after_the_clock_ms(problem: JudgedProblem, runner: Runner) -> float:
    """What the runner of a ``.py`` kernel does with its outputs after its clock has stopped: it copies them, or looks
    at each where the judge reads them."""
    return _LOOKED_AT_MS * len(problem.spec.outputs) if runner.reads_results else problem.copy_ms
