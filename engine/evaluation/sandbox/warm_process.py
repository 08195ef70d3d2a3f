"""The warm process, which has already imported torch and forks the runners of ``.py`` kernels.

Forking starts a runner in 30 ms instead of 1.6 s.
"""

from __future__ import annotations

import atexit
import contextlib
import select
import socket
import subprocess
from functools import cache

from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.inside import wire
from engine.evaluation.sandbox.runner import RunnerEnded
from engine.evaluation.sandbox.runner_process import cores, runner_environment
from engine.system.python_process import python_command, python_path

_ZYGOTE = "engine.evaluation.sandbox.inside.python_kernel.zygote"


class WarmProcess:
    """A warm process, which starts with the first ``.py`` kernel, and restarts if it ends.

    ``profiler_works``: whether PyTorch's profiler works in the forked runners, or None before the first test.
    """

    def __init__(self, kind: str) -> None:
        self.profiler_works: bool | None = None
        self._kind = kind
        self._started: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        atexit.register(self.stop)

    def begin(self) -> None:
        """Start the process and return at once, because importing torch takes seconds."""
        self._requests()

    def fork(self, isolate: bool, control: int, output: int) -> int:
        """Fork a runner that uses the descriptors ``control`` and ``output``. Return its pid. Raises
        ``RunnerEnded``.
        """
        for _ in range(2):
            requests = self._requests()
            with contextlib.suppress(OSError):
                wire.send(requests, {"kind": self._kind, "isolate": isolate}, (control, output))
                waits = select.select([requests], [], [], POLICY.sandbox.python_start_s)[0]
                if waits and (received := wire.receive(requests)) is not None:
                    return int(received[0]["pid"])
            self.stop()
        raise RunnerEnded("error", "the judge cannot start the parent process of .py runners; see engine.log")

    def stop(self) -> None:
        """End the process and its runners. Idempotent."""
        started, self._started = self._started, None
        if started is not None:
            process, requests = started
            requests.close()
            process.kill()
            process.wait()

    def _requests(self) -> socket.socket:
        """Return the running process's socket, and start the process if necessary."""
        if self._started is not None and self._started[0].poll() is None:
            return self._started[1]
        self.stop()
        requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                python_command(_ZYGOTE, str(theirs.fileno()), cores()),
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                env={**runner_environment(self._kind), "PYTHONPATH": python_path(), "PYTHONDONTWRITEBYTECODE": "1"},
            )
        self._started = process, requests
        return requests


@cache
def warm_process(kind: str) -> WarmProcess:
    """Return the judge's single warm process."""
    return WarmProcess(kind)
