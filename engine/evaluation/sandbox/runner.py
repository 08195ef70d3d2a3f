"""Start, monitor and end the isolated process of one kernel. This module runs in the judge.

A :class:`Runner` belongs to one kernel. The runner is a process group that communicates with the judge over a socket
pair.

Against ``forged-answer``, the judge limits the size of answers and checks their content. Against ``late-work``, the
judge stops the process between calls. Against ``resources``, the judge sets deadlines and limits memory, threads and
output. Against ``escape``, the code in ``inside`` isolates the process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, ValidationError, convert, to_builtins

from engine.evaluation.judge_policy import GIB, MIB, POLICY
from engine.evaluation.sandbox import post_mortem
from engine.evaluation.sandbox.inside import wire
from engine.evaluation.sandbox.post_mortem import End
from engine.evaluation.sandbox.process_facts import Usage, mappings_of, usage_of
from engine.evaluation.sandbox.resource_limits import Limits
from engine.evaluation.sandbox.runner_process import RunnerProcess, spare_process
from engine.evaluation.sandbox.shared_memory import Gate
from engine.session.records.verdict import Launch
from engine.system.child import is_suspended

if TYPE_CHECKING:
    from engine.evaluation.correctness.trials import JudgedProblem

FORGED = "the kernel forged an answer: only the runner may answer the judge"
_SANDBOX = POLICY.sandbox


class RunnerEnded(Exception):
    """A runner that cannot continue. ``end``: the kind of failure. The message is one sentence for the verdict."""

    def __init__(self, end: End, text: object) -> None:
        words = str(text)[: _SANDBOX.reason_chars]
        super().__init__(words.encode(errors="replace").decode())  # A kernel's output may not be valid text.
        self.end = end


class Loaded(Struct, frozen=True):
    """A runner's report after loading a kernel.

    ``detail``: what the verdict says about the kernel's workspace or weights. ``keeps_weights``: whether the kernel has
    its own weights.
    """

    detail: str
    keeps_weights: bool = False


class Runner:
    """One runner process, from start to end. Use the runner as a context manager.

    ``pid``: the kernel's process id in the judge's PID namespace. ``sandbox``: the active isolation layers.
    ``cancelled``: a function that the judge polls while it waits. Raises ``RunnerEnded`` if the process does not start.
    """

    launches_from_python = False
    """Whether Python code launches the kernel on a GPU. Such launches take longer after a pause."""
    reads_results = False
    """Whether the judge reads a ``.py`` kernel's results from the stopped process. Otherwise, the runner copies the
    results after timing.
    """

    def __init__(self, kind: str, limits: Limits, cancelled: Callable[[], bool]) -> None:
        self._limits, self._cancelled = limits, cancelled
        self._output, self._printed = bytearray(), 0
        self._at_start: Usage | None = None
        self._arena_bytes = self._workspace_bytes = self.pid = 0
        self._next_call_compiles = False  # A call that compiles may take as long as the start.
        self.sandbox = ""
        self._process = self._start(kind)
        self._gate = Gate() if kind == "cuda" else None
        self._control, self._out = self._process.control, self._process.output
        try:
            self.pid = self._wait_for_hello()
        except BaseException:
            self.close()
            raise

    def _start(self, kind: str) -> RunnerProcess:
        """Start the runner's process, or take one that is already waiting."""
        return spare_process(kind, self._limits.isolate).take()

    def _wait_for_hello(self) -> int:
        """Return the runner's pid, which the system attaches to its first message."""
        if select.select([self._control], [], [], self._limits.start_s)[0]:
            data, ancillary, _, _ = self._control.recvmsg(4096, socket.CMSG_SPACE(12))
            self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
            for level, kind, content in ancillary:
                if b"hello" in data and (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    return int.from_bytes(content[:4], sys.byteorder, signed=True)
        self._drain()
        said = self.output_tail.strip().splitlines() or ["no output"]
        raise RunnerEnded("error", f"the runner did not start: {said[-1]}; try again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all of the runner's processes. Idempotent; never raises."""
        if self._control.fileno() < 0:
            return
        self._signal(signal.SIGKILL)
        self._process.close()
        if self._gate is not None:
            self._gate.close()

    @property
    def output_tail(self) -> str:
        return self._output.decode(errors="replace")

    def load(self, kernel: Path, problem: JudgedProblem) -> Loaded:
        """Pass the shared buffers and the kernel's library to the runner. Raises ``RunnerEnded`` if loading fails."""
        workspace = self._load(kernel.read_bytes(), problem).get("workspace_bytes")
        if type(workspace) is not int:
            raise RunnerEnded("forbidden", FORGED)
        self._workspace_bytes = workspace
        return Loaded(f"workspace {workspace:,} bytes" if workspace else "no workspace")

    def _load(self, kernel: bytes, problem: JudgedProblem, **allowed: Any) -> dict[str, Any]:
        """Pass ``kernel`` as a file. Return the runner's report on loading, and leave the process stopped."""
        arena = problem.arena
        self._arena_bytes = arena.nbytes
        with os.fdopen(os.memfd_create("kernel", os.MFD_CLOEXEC), "w+b", 0) as memory:
            memory.write(kernel)
            memory.seek(0)
            order = {"arena_bytes": arena.nbytes, "slots": arena.offsets, **allowed}
            layers = self.isolate(memory.fileno(), arena.descriptor, **order)
        self.sandbox = "; ".join(layers) or "none"
        self._at_start = usage_of(self.pid)
        ready = self._answer(self._limits.start_s, "load")
        self._stand_still(ready)
        return ready

    def isolate(self, kernel: int, arena: int, **order: Any) -> list[str]:
        """Send the first order, which contains all data that the runner needs. Return the active isolation layers.

        ``kernel`` and ``arena`` are descriptors. ``order`` contains ``arena_bytes`` and ``slots`` (the buffers' offsets
        in the arena). ``readable`` and ``writable`` are the directories that the kernel may use in addition to the
        system's. ``compilers`` says whether the kernel may start compilers.
        """
        none = {"arena_bytes": 0, "slots": [], "readable": [], "writable": [], "compilers": False}
        common = {"data_bytes": 2 * self._limits.data_bytes, "policy": to_builtins(_SANDBOX)}
        self._send(none | order | common, kernel, arena, *([self._gate.descriptor] if self._gate else []))
        layers = self._answer(self._limits.start_s, "start").get("isolated")
        if not isinstance(layers, list):
            raise RunnerEnded("forbidden", FORGED)
        return [str(layer) for layer in layers]

    def call(
        self, slots: Sequence[int], flushes: int = 0, seed: int | None = None, untimed: Sequence[int] = ()
    ) -> tuple[list[float], float]:
        """Call the kernel on each slot in turn. Return the reported times and the judge's wall time, in milliseconds.

        ``flushes``: L2 evictions on a GPU before each call. With 0, the runner reports one time for all calls.
        ``seed``: the random seed before the first call, for models that draw random numbers (``.py`` kernels only).
        ``untimed``: the slots for untimed calls before each call of a kernel that launches from Python. The wall time
        includes these untimed calls.

        Raises ``RunnerEnded``.
        """
        answer, wall_ms = self._ask(self._order(slots, flushes, seed, untimed))
        times = answer.get("ms")
        if not isinstance(times, list) or not _are_possible(times, len(slots), wall_ms):
            raise RunnerEnded("forbidden", "the kernel forged its times: the reported times are impossible")
        return [float(value) for value in times], wall_ms

    def _order(self, slots: Sequence[int], flushes: int, seed: int | None, untimed: Sequence[int]) -> dict[str, Any]:
        before = list(untimed) if self.launches_from_python else []
        return {"slots": list(slots), "flushes": flushes, "seed": seed, "untimed": before}

    def launches(self, seed: int | None = None) -> tuple[Launch, ...]:
        """Return the GPU launches of one call on the first slot, as the kernel's process reports them.

        Returns () if the launches are unknown. Recording may end the process, so call this method last.
        """
        with contextlib.suppress(RunnerEnded, ValidationError):
            answer, _ = self._ask({"slots": [0], "seed": seed, "launches": True})
            return convert(answer.get("launches"), tuple[Launch, ...])[: _SANDBOX.reported_names]
        return ()

    def call_behind_gate(
        self,
        slots: Sequence[int],
        load: Callable[[], object],
        settle: Callable[[], object],
        seed: int | None = None,
    ) -> float | None:
        """Queue calls on the GPU, ``load`` their inputs, and then let the calls run.

        Returns the milliseconds until the runner has answered and ``settle`` has returned. Returns None if the runner
        cannot queue calls, because ``launch`` waits for the device or the driver does not support gates.

        The time excludes launching. The judge loads the inputs only after the runner has queued the calls. Threat:
        clock, late-work. Raises ``RunnerEnded``.
        """
        if self._gate is None:
            return None
        self._wake({"slots": list(slots), "seed": seed, "gate": self._gate.next()})
        queued: dict[str, Any] = {}
        try:
            queued = self._answer(min(_SANDBOX.queue_s, self._limits.call_s), "call")
        except RunnerEnded as ended:
            if ended.end != "timeout":
                raise
        self._stand_still(queued)
        load()
        start = time.perf_counter()  # A runner gains nothing by waking up before the gate opens.
        self._signal(signal.SIGCONT)
        while time.perf_counter() - start < _SANDBOX.awake_s:
            pass
        self._gate.open()
        answer = self._answer(self._limits.call_s * min(len(slots), 2), "call")
        settle()
        wall_ms = (time.perf_counter() - start) * 1e3
        if not queued and "queued" in answer:  # The message about queuing arrives only now, before the answer.
            answer = self._answer(self._limits.call_s, "call")
        self._stand_still(answer)
        return wall_ms if queued.get("queued") is True else None

    def _ask(self, order: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """Send an order to call the kernel. Return the runner's answer, and the time until the answer, in
        milliseconds.
        """
        start = self._wake(order)
        limit_s = self._limits.call_s * min(len(order["slots"]), 2)
        if self._next_call_compiles:
            limit_s = max(limit_s, self._limits.start_s)
            self._next_call_compiles = False
        answer = self._answer(limit_s, "call")
        wall_ms = (time.perf_counter() - start) * 1e3
        self._stand_still(answer)
        return answer, wall_ms

    def _wake(self, order: dict[str, Any]) -> float:
        """Wake the runner and send ``order``. Return the time of sending, in seconds by this process's clock."""
        self._signal(signal.SIGCONT)
        start = time.perf_counter()
        self._send(order)
        return start

    def _send(self, order: dict[str, Any], *descriptors: int) -> None:
        try:
            wire.send(self._control, order, descriptors)
        except (BrokenPipeError, ConnectionResetError):  # The runner's last message reports why it ended.
            self._receive("call")
            raise RunnerEnded("forbidden", FORGED) from None

    def _stand_still(self, answer: dict[str, Any]) -> None:
        """Stop the process between its calls, so that no thread can change inputs or slow the reference.

        ``answer``: the runner's report on the call or on loading. This method also checks memory use, because no other
        check runs during a short call. Threat: late-work, slow-reference. Raises ``RunnerEnded``, even if only the call
        failed and the process is still running.
        """
        self._signal(signal.SIGSTOP)
        self._check_usage()
        if (code := answer.get("code", 0)) != 0:
            words = answer.get("error") or f"launch returned {code}"
            raise RunnerEnded("wrong_output" if answer.get("wrong") else "launch_failed", words)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def _answer(self, deadline_s: float, stage: str) -> dict[str, Any]:
        """Return the runner's next message. Raises ``RunnerEnded`` if the runner exceeds a limit or the deadline."""
        deadline = time.monotonic() + deadline_s
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._out, select.POLLIN)
        while True:
            ready = dict(poll.poll(_SANDBOX.poll_s * 1e3))
            if self._out.fileno() in ready:
                self._drain()
                if self._printed > _SANDBOX.printed_bytes:
                    most = f"{_SANDBOX.printed_bytes // MIB} MiB"
                    raise RunnerEnded("forbidden", f"the kernel printed more than {most}; remove its print statements")
            if self._control.fileno() in ready:
                return self._receive(stage)
            if self._cancelled():
                raise RunnerEnded("cancelled", "cancelled")
            self._check_usage()
            if time.monotonic() > deadline:
                if is_suspended(self.pid):  # The judge resumed the process, so another process stopped it.
                    reason = f"a signal from outside the judge stopped the kernel ({stage}); judge the kernel again"
                    raise RunnerEnded("error", reason)
                hint = "check whether the kernel loops endlessly or is far slower than the reference"
                raise RunnerEnded("timeout", f"the kernel did not answer within {deadline_s:g} s ({stage}); {hint}")

    def _has_hung_up(self) -> bool:
        """Return whether every process has closed the runner's end of the socket, which must happen after the last
        message.

        If a kernel forged the last message, the kernel is still alive, or another message follows.
        """
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not poll.poll(_SANDBOX.status_s * 1e3):
            return not self._limits.isolate  # The kernel's child processes may still be alive.
        try:
            return wire.receive(self._control) is None
        except ConnectionResetError:  # The process ended before it read an order.
            return True
        except (ValueError, RecursionError, OSError):
            return False

    def _receive(self, stage: str) -> dict[str, Any]:
        try:
            try:
                received = wire.receive(self._control)
            except ConnectionResetError:  # The process ended before it read an order.
                received = wire.receive(self._control)
        except (ValueError, RecursionError, OSError):
            raise RunnerEnded("forbidden", FORGED) from None
        if received is None:
            raise RunnerEnded("crashed", "the kernel's process ended, and the system did not report why")
        message, descriptors = received
        for descriptor in descriptors:
            os.close(descriptor)
        if "ended" in message:
            status = message["ended"]
            if type(status) is not int or not 0 <= status <= 0xFFFF or not self._has_hung_up():
                raise RunnerEnded("forbidden", FORGED)
            self._drain()
            raise RunnerEnded(*post_mortem.why(status, self.output_tail, self._bound(), self._workspace_bytes))
        if "failed" in message:
            text = message.get("text", "")
            if message["failed"] == "start" and stage == "start":
                raise RunnerEnded("error", f"the runner could not start: {text}; run kernel-tui doctor")
            if message["failed"] == "cuda":
                raise RunnerEnded("crashed", f"the kernel failed on the device: {text}")
            raise RunnerEnded("not_loaded", text)
        return message

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while self._printed <= _SANDBOX.printed_bytes and (chunk := self._out.recv(1 << 16)):
                self._printed += len(chunk)
                self._output += chunk
                del self._output[: -_SANDBOX.printed_kept_bytes]

    def _check_usage(self) -> None:
        """Raise ``RunnerEnded`` if the kernel exceeds its limit on threads, or on memory outside the arena.

        Threat: resources.
        """
        start, now, bound = self._at_start, usage_of(self.pid), self._limits.data_bytes
        if start is None or now is None:
            return
        most = _SANDBOX.threads + _SANDBOX.threads_per_core * (os.cpu_count() or 1)
        if now.threads > most:
            raise RunnerEnded("forbidden", f"the kernel started more than {most:,} threads; reuse existing threads")
        held = now.private_bytes - start.private_bytes + max(0, now.shared_bytes - self._arena_bytes)
        if bound and held > bound:
            raise RunnerEnded("memory", f"the kernel exceeded its {self._bound()}")

    def _bound(self) -> str:
        size = f"{self._limits.data_bytes / GIB:.1f} GiB"
        return f"memory limit of {size}; use less memory, or raise evaluation.memory_limit"

    def mapped(self) -> set[str] | None:
        """Return the names of the files mapped into the kernel's process, or None if /proc is not readable."""
        with contextlib.suppress(OSError):
            return {one.name.rpartition("/")[2] for one in mappings_of(self.pid) if "/" in one.name}
        return None

    def others_started(self) -> list[str]:
        """Return the names of live processes that the kernel started. The judge's clocks do not measure the work of
        these processes. Threat: late-work.
        """
        import psutil

        with contextlib.suppress(psutil.Error):
            runner = [self.pid, *(parent.pid for parent in psutil.Process(self.pid).parents())]
            return [
                f"{one.name()} ({one.pid})"
                for one in psutil.Process(self._process.outermost).children(recursive=True)
                if one.pid not in runner and one.status() != psutil.STATUS_ZOMBIE
            ]
        return []


def _are_possible(times: list[Any], count: int, wall_ms: float) -> bool:
    """Return whether ``count`` calls could have taken ``times``, given ``wall_ms`` by the judge's clock.

    Threat: clock, forged-answer.
    """
    most = wall_ms + _SANDBOX.report_slack_ms
    if len(times) != count or not all(isinstance(one, int | float) and 0 < one <= most for one in times):
        return False  # This comparison also rejects NaN and infinity.
    return bool(sum(times) <= _SANDBOX.report_slack * wall_ms + _SANDBOX.report_slack_ms)
