"""Start, watch and end the isolated process of one kernel, from the judge's side.

A :class:`Runner` belongs to one variant. It is a child in its own process group, spoken to over a socket pair, with
a deadline for every answer, a bound on memory (polled, with ``RLIMIT_DATA`` behind it) and on what it prints.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from msgspec import Struct

from engine.evaluation.gate import Gate
from engine.evaluation.holder import is_suspended
from engine.evaluation.neighbours import processor_s
from engine.evaluation.runner import wire
from engine.evaluation.usage import Usage, shared_addresses, usage_of

if TYPE_CHECKING:
    from engine.evaluation.trials import JudgedProblem

RUNNER = Path(__file__).parent / "runner" / "__main__.py"
CORES_VARIABLE = "KERNEL_TUI_CORES"
OUTPUT_LIMIT_BYTES = 1 << 20
_OUTPUT_KEPT_BYTES = 4096
_POLL_S = 0.02
_QUEUE_S = 0.25
"""Calls that are not queued by then wait for the device. Launching takes microseconds."""
_AWAKE_S = 0.0005
"""How long a runner is given to wake up before its calls may run: the empty kernel's too."""
MOST_THREADS = 1024 + 16 * (os.cpu_count() or 1)
"""Of a kernel: the system has some ten thousands for all, and who has none left can start no process."""
FORGED = "the runner's answer was forged"
_SIGNALS = frozenset(signal.Signals)

End = Literal["crashed", "timeout", "memory", "forbidden", "cancelled", "launch_failed", "not_loaded", "error"]


class RunnerEnded(Exception):
    """The runner cannot go on. ``end`` is the class of its end, the text one sentence for the verdict."""

    def __init__(self, end: End, text: str) -> None:
        super().__init__(text.encode(errors="replace").decode())  # a kernel's words may be no text at all
        self.end = end


class Limits(Struct, frozen=True):
    """What a runner may use. ``data_bytes`` bounds its private memory beyond what it starts with; 0: unbounded."""

    start_s: float = 30.0
    call_s: float = 10.0
    data_bytes: int = 0
    isolate: bool = True


class Loaded(Struct, frozen=True):
    """What a loaded kernel said of itself, in words for the verdict. ``keeps_weights``: it has weights of its own."""

    detail: str
    keeps_weights: bool = False


class Process(Protocol):
    """What a runner needs of its outermost process, as ``subprocess.Popen`` has it."""

    pid: int

    @property
    def returncode(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Runner:
    """One runner process, from start to end. ``cancelled`` is asked while waiting; use as a context manager."""

    goes_cold = False
    """Whether its launches take longer after a pause: from Python, on a GPU."""
    reads_results = False
    """Whether what a ``.py`` kernel returns is read from its memory; else its runner copies it after the clock."""

    def __init__(self, kind: str, limits: Limits, cancelled: Callable[[], bool], reports: bool = False) -> None:
        self._limits, self._cancelled = limits, cancelled
        self._output, self._printed = bytearray(), 0
        self._pid: int | None = None
        self._at_start: Usage | None = None
        self._arena_bytes = 0
        self._gate = Gate() if kind == "cuda" else None
        self._reports = reports or limits.isolate
        """Whether the wait status comes through the pipe: the process itself is then not our child."""
        self.sandbox = ""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._status, status_end = os.pipe()
        self._out, out_end = os.pipe()
        os.set_blocking(self._out, False)
        # Credentials of the first message tell the runner's pid as this process sees it, across PID namespaces.
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            self._process = self._start(kind, theirs.fileno(), status_end, out_end)
        except BaseException:
            self._control.close()
            os.close(self._status)
            os.close(self._out)
            raise
        finally:
            theirs.close()
            os.close(status_end)
            os.close(out_end)
        self._wait_for_hello()

    def _start(self, kind: str, control: int, status: int, output: int) -> Process:
        """The outermost process of the runner, with these descriptors."""
        isolate = "1" if self._limits.isolate else "0"
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(RUNNER), str(control), str(status), kind, isolate, cores()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(control, status),
            process_group=0,
            cwd="/",
            env=runner_environment(kind),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The kernel's process as seen from here."""
        return self._pid

    @property
    def output_tail(self) -> str:
        return self._output.decode(errors="replace")

    def load(self, kernel: Path, problem: JudgedProblem) -> Loaded:
        """Hand over the shared buffers and the kernel's library.

        Raises ``RunnerEnded`` when the kernel cannot be loaded or does something else instead.
        """
        arena = problem.arena
        self._arena_bytes = arena.nbytes
        memory = os.memfd_create("kernel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            data = kernel.read_bytes()
            os.write(memory, data)
            order = {"arena_bytes": arena.nbytes, "slots": arena.offsets, "data_bytes": 2 * self._limits.data_bytes}
            ready = self._loaded(order, memory, arena.descriptor)
        finally:
            os.close(memory)
        workspace = ready.get("workspace_bytes", 0)
        if not isinstance(workspace, int):
            raise RunnerEnded("forbidden", FORGED)
        return Loaded(f"workspace {workspace:,} bytes" if workspace else "no workspace")

    def _loaded(self, order: dict[str, Any], *descriptors: int) -> dict[str, Any]:
        """Send the order; what the runner says when the kernel is ready. It stands still from then on."""
        gate = (self._gate.descriptor,) if self._gate is not None else ()
        try:
            wire.send(self._control, order, (*descriptors, *gate))
        except OSError:
            raise self._post_mortem() from None
        isolated = self._answer(self._limits.start_s, "start")
        layers = isolated.get("isolated")
        if not isinstance(layers, list):
            raise RunnerEnded("forbidden", FORGED)
        self.sandbox = "; ".join(map(str, layers)) or "none"
        self._at_start = usage_of(self._pid or 0)
        ready = self._answer(self._limits.start_s, "load")
        self._stand_still()
        return ready

    def isolate_only(self) -> list[str]:
        """Isolate without a kernel, as a probe: the layers in force."""
        with Path("/dev/null").open("rb") as nothing:
            order = {"arena_bytes": 0, "slots": [], "data_bytes": 0}
            wire.send(self._control, order, (nothing.fileno(), nothing.fileno()))
        return [str(layer) for layer in self._answer(self._limits.start_s, "start").get("isolated", ())]

    def call(
        self, slots: Sequence[int], flushes: int = 0, seed: int | None = None, warm: int | None = None
    ) -> tuple[list[float], float]:
        """Call the kernel on one slot after another: its own times and the wall time seen here, milliseconds.

        ``flushes``: how often a GPU's L2 cache is evicted before each; 0: not, and all of them are timed as one.
        ``seed``: of the generator before the first call, for models that draw random numbers (``.py`` kernels only).
        ``warm``: each with one on that slot right before it that counts for nothing, if it launches from Python; it is
        in the wall time.

        Raises ``RunnerEnded``.
        """
        order = {"slots": list(slots), "flushes": flushes, "seed": seed}
        answer, wall_ms = self._ask(order | {"warm": warm} if warm is not None and self.goes_cold else order)
        times = answer.get("ms")
        if not isinstance(times, list) or not _are_possible(times, len(slots), wall_ms):
            raise RunnerEnded("forbidden", "its clock was forged: no such times are possible")
        return [float(value) for value in times], wall_ms

    def call_behind_gate(
        self,
        slots: Sequence[int],
        load: Callable[[], object],
        settle: Callable[[], object],
        seed: int | None = None,
    ) -> float | None:
        """Have calls queued on the GPU, then ``load`` their inputs, then let them run: milliseconds until the runner
        has answered and ``settle`` is done. None where they cannot be queued: ``launch`` waits for the device, or the
        driver knows no such thing.

        What launching takes is no part of it, and inputs are there no sooner than the clock runs. Raises
        ``RunnerEnded``.
        """
        if self._gate is None:
            return None
        order = {"slots": list(slots), "flushes": 0, "seed": seed, "gate": self._gate.next()}
        self._send(order)
        queued: dict[str, Any] = {}
        try:
            queued = self._answer(min(_QUEUE_S, self._limits.call_s), "call")
        except RunnerEnded as ended:
            if ended.end != "timeout":
                raise
        self._stand_still()
        self._check_code(queued)
        load()
        start = time.perf_counter()  # who is awake before the gate is open gains nothing by opening it
        self._signal(signal.SIGCONT)
        while time.perf_counter() - start < _AWAKE_S:
            pass
        self._gate.open()
        answer = self._answer(self._limits.call_s * min(len(slots), 2), "call")
        settle()
        wall_ms = (time.perf_counter() - start) * 1e3
        if not queued:  # its word comes only now, before its answer
            answer = self._answer(self._limits.call_s, "call") if "queued" in answer else answer
        self._stand_still()
        self._check_code(answer)
        return wall_ms if queued.get("queued") is True else None

    def _ask(self, order: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """What the runner answers to an order to call the kernel, and the milliseconds until then."""
        start = self._send(order)
        answer = self._answer(self._limits.call_s * min(len(order["slots"]), 2), "call")
        wall_ms = (time.perf_counter() - start) * 1e3
        self._stand_still()
        self._check_code(answer)
        return answer, wall_ms

    def _send(self, order: dict[str, Any]) -> float:
        """Wake the runner and give it ``order``: when, by this process's clock, seconds."""
        self._signal(signal.SIGCONT)
        start = time.perf_counter()
        try:
            wire.send(self._control, order)
        except OSError:
            raise self._post_mortem() from None
        return start

    def _check_code(self, answer: dict[str, Any]) -> None:
        if (code := answer.get("code", 0)) != 0:
            said = answer.get("error")
            raise RunnerEnded("launch_failed", str(said)[:1000] if said else f"launch returned {code}")

    def mapped(self) -> set[str] | None:
        """Names of the files that are mapped into the kernel's process; None where that cannot be read."""
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{self._pid}/maps").read_text(errors="replace").splitlines()
            return {line.rpartition("/")[2] for line in lines if "/" in line}
        return None

    def others_started(self) -> list[str]:
        """Names of the processes that the kernel has started and that live: what they do is in no account of ours."""
        import psutil

        if self._pid is None:
            return []
        try:
            outermost = psutil.Process(self._process.pid)
            above = {parent.pid for parent in psutil.Process(self._pid).parents()}
            return [
                f"{one.name()} ({one.pid})"
                for one in outermost.children(recursive=True)
                if one.pid != self._pid and one.pid not in above and one.status() != psutil.STATUS_ZOMBIE
            ]
        except psutil.Error:
            return []

    def processor_s(self) -> float:
        """Processor time of the kernel's process, all threads, as the kernel of the system counts it."""
        return processor_s(self._pid)

    def close(self) -> None:
        """End every process of the runner. Idempotent, never raises."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.returncode is None:
            self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._control.close()
        if self._gate is not None:
            self._gate.close()
        for name in ("_status", "_out"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)

    def _stand_still(self) -> None:
        """Stop the process between its calls, so that no thread of it changes inputs or slows the reference. Of short
        calls nobody has looked meanwhile at what they take."""
        self._signal(signal.SIGSTOP)
        self._check_usage()

    def _signal(self, number: signal.Signals) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, number)

    def _wait_for_hello(self) -> None:
        deadline = time.monotonic() + self._limits.start_s
        while time.monotonic() < deadline:
            if select.select([self._control], [], [], _POLL_S)[0]:
                data, ancillary, _, _ = self._control.recvmsg(4096, socket.CMSG_SPACE(12))
                if not data:
                    break
                for level, kind, content in ancillary:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                        self._pid = int.from_bytes(content[:4], "little", signed=True)
                self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
                return
        self._drain()
        text = self.output_tail.strip().splitlines()
        self.close()
        raise RunnerEnded("error", f"the runner did not start: {text[-1] if text else 'no word from it'}")

    def _answer(self, deadline_s: float, stage: str) -> dict[str, Any]:
        deadline = time.monotonic() + deadline_s
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if self._out >= 0:
            poll.register(self._out, select.POLLIN)
        while True:
            ready = dict(poll.poll(_POLL_S * 1e3))
            if self._out in ready:
                self._drain()
                if self._printed > OUTPUT_LIMIT_BYTES:
                    raise RunnerEnded("forbidden", f"printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB")
            if self._control.fileno() in ready:
                return self._receive(stage)
            if self._cancelled():
                raise RunnerEnded("cancelled", "cancelled")
            self._check_usage()
            if time.monotonic() > deadline:
                if self._pid is not None and is_suspended(self._pid):  # which the judge undid when it asked
                    raise RunnerEnded("error", f"a signal that is not the judge's has stopped its process ({stage})")
                raise RunnerEnded("timeout", f"no answer within {deadline_s:g} s ({stage})")

    def _receive(self, stage: str) -> dict[str, Any]:
        try:
            received = wire.receive(self._control)
        except ConnectionResetError:  # it ended with an order unread
            raise self._post_mortem() from None
        except (ValueError, RecursionError, OSError):
            raise RunnerEnded("forbidden", FORGED) from None
        if received is None:
            raise self._post_mortem()
        message, descriptors = received
        for descriptor in descriptors:
            os.close(descriptor)
        if "failed" in message:
            text = str(message.get("text", ""))[:1000]
            if message["failed"] == "start" and stage == "start":
                raise RunnerEnded("error", f"the runner could not start: {text}")
            if message["failed"] == "cuda":
                raise RunnerEnded("crashed", f"the kernel failed on the device: {text}")
            raise RunnerEnded("not_loaded", text)
        return message

    def _post_mortem(self) -> RunnerEnded:
        """Why the runner is gone, read from its wait status."""
        status = self._wait_status()
        self._drain()
        if status is None:
            return RunnerEnded("crashed", "ended without a status")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            name = signal.Signals(number).name if number in _SIGNALS else f"signal {number}"
            if number == signal.SIGSYS:
                return RunnerEnded("forbidden", "tried to start a process (SIGSYS)")
            if "bad_alloc" in self.output_tail:
                return RunnerEnded("memory", f"ran out of its {self._bound()} of memory ({name})")
            if number == signal.SIGKILL:  # which is not ours: nobody asks then how it ended
                return RunnerEnded("error", "something else than the judge ended it by SIGKILL; is the memory short?")
            return RunnerEnded("crashed", f"ended by {name}")
        return RunnerEnded("crashed", f"ended itself with exit code {os.WEXITSTATUS(status)}")

    def _wait_status(self) -> int | None:
        if self._reports:
            if select.select([self._status], [], [], 2.0)[0]:
                text = os.read(self._status, 64)
                with contextlib.suppress(ValueError):
                    return int(text)
            return None
        try:
            code = self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            return None
        return -code if code < 0 else code << 8

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while chunk := os.read(self._out, 1 << 16):
                self._printed += len(chunk)
                self._output += chunk
                del self._output[:-_OUTPUT_KEPT_BYTES]
                if self._printed > OUTPUT_LIMIT_BYTES:
                    return

    def _check_usage(self) -> None:
        """Raises ``RunnerEnded`` where it has more threads, or more memory beside the arena, than a kernel may."""
        start, now, bound = self._at_start, usage_of(self._pid or 0), self._limits.data_bytes
        if start is None or now is None:
            return
        if now.threads > MOST_THREADS:
            raise RunnerEnded("forbidden", f"started more than {MOST_THREADS:,} threads")
        shared = now.shared_bytes
        if now.other_bytes - start.other_bytes > bound:
            shared = max(shared, shared_addresses(self._pid or 0))
        if bound and now.private_bytes - start.private_bytes + max(0, shared - self._arena_bytes) > bound:
            raise RunnerEnded("memory", f"took more than its {self._bound()} of memory")

    def _bound(self) -> str:
        return f"{self._limits.data_bytes / 2**30:.1f} GiB"


def _are_possible(times: list[Any], count: int, wall_ms: float) -> bool:
    """Whether ``times`` can be what ``count`` calls took within ``wall_ms`` of our clock."""
    if len(times) != count or not all(isinstance(one, int | float) and 0 < one <= wall_ms + 0.05 for one in times):
        return False  # NaN and infinity are not either
    return bool(sum(times) <= 1.01 * wall_ms + 0.05)


def cores() -> str:
    """The cores a kernel may use: all of the engine's. This process's own may be fewer, its threads being bound."""
    return os.environ.get(CORES_VARIABLE) or ",".join(map(str, sorted(os.sched_getaffinity(0))))


def runner_environment(kind: str) -> dict[str, str]:
    """What a kernel may know: threads, waiting policy and the device; nothing of the user's environment."""
    kept = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "PATH": "/nonexistent", "HOME": "/nonexistent"}
    if kind == "cuda":
        environment |= {"CUDA_CACHE_DISABLE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return environment
