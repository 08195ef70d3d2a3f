"""The process of a runner, and the spare process that waits for the next compiled kernel on a GPU."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from engine.evaluation.judge_policy import POLICY

RUNNER = Path(__file__).parent / "inside" / "__main__.py"
CORES_VARIABLE = "KERNEL_TUI_CORES"


class RunnerProcess:
    """A runner's process group, with the judge's ends of two sockets.

    ``control`` carries orders and answers, and ``output`` carries what the kernel prints. ``start`` receives the
    descriptors of the other ends, and returns the outermost process or its pid. ``outermost``: that pid. Raises
    whatever ``start`` raises.
    """

    def __init__(self, start: Callable[[int, int], subprocess.Popen[bytes] | int]) -> None:
        self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.output, output = socket.socketpair()
        self.output.setblocking(False)
        # The credentials of the first message carry the runner's pid as this process sees it, across PID namespaces.
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._child: subprocess.Popen[bytes] | None = None
        try:
            with control, output:
                started = start(control.fileno(), output.fileno())
        except BaseException:
            self.control.close()
            self.output.close()
            raise
        if isinstance(started, subprocess.Popen):
            self._child, started = started, started.pid
        self.outermost: int = started

    @property
    def is_alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def close(self) -> None:
        """End the process group. Idempotent; never raises."""
        if self.control.fileno() < 0:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.outermost, signal.SIGKILL)
        end = select.poll()
        end.register(self.control, 0)  # ``poll`` reports an event once no process has the other end open.
        end.poll(POLICY.sandbox.end_s * 1e3)
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=POLICY.sandbox.end_s)
        self.control.close()
        self.output.close()


class SpareProcess:
    """A process that has not received a kernel yet. While the judge evaluates one kernel, it starts the process for the
    next kernel.

    On a GPU, starting the process and the CUDA driver takes a tenth of a second. The start takes longer if another
    GPU's judge starts a process at the same time.
    """

    def __init__(self, kind: str, isolate: bool) -> None:
        self._kind, self._isolate = kind, isolate
        self._waiting: RunnerProcess | None = None
        self._owner = os.getpid()
        atexit.register(self.stop)

    def prepare(self) -> None:
        """Start a process unless one is waiting. Return at once. If the system cannot start a process, :meth:`take`
        tries again.
        """
        if self._waiting is None:
            with contextlib.suppress(OSError):
                self._waiting = self._start()

    def take(self) -> RunnerProcess:
        """Return the waiting process, or a new process."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting.is_alive:
            return waiting
        if waiting is not None:
            waiting.close()
        return self._start()

    def stop(self) -> None:
        """End the waiting process. Idempotent. Do nothing in a forked process, because a problem's code may have forked
        the judge.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is not None and self._owner == os.getpid():
            waiting.close()

    def _start(self) -> RunnerProcess:
        return RunnerProcess(self._open)

    def _open(self, control: int, output: int) -> subprocess.Popen[bytes]:
        environment = runner_environment(self._kind)
        if self._kind == "cuda":
            # With two queues instead of eight, a context is ready in half the time. With one queue, a kernel that does
            # not order its own stream after the caller's would still return correct outputs.
            environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "2"
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(RUNNER), str(control), self._kind, "01"[self._isolate], cores()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(control,),
            process_group=0,
            cwd="/",
            env=environment,
        )


@cache
def spare_process(kind: str, isolate: bool) -> SpareProcess:
    """Return the judge's single spare process for compiled kernels."""
    return SpareProcess(kind, isolate)


def cores() -> str:
    """Return the cores for kernels, which are all of the engine's cores. This process may use fewer cores, because its
    threads are bound to cores.
    """
    return os.environ.get(CORES_VARIABLE) or ",".join(map(str, sorted(os.sched_getaffinity(0))))


def runner_environment(kind: str) -> dict[str, str]:
    """Return a kernel's environment.

    The variables configure OpenMP's threads and wait policy, and select the device. The environment excludes the user's
    other variables. Threat: escape.
    """
    kept = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "PATH": "/nonexistent", "HOME": "/nonexistent"}
    if kind == "cuda":
        environment |= {"CUDA_CACHE_DISABLE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return environment
