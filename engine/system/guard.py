"""The guard: a small process that waits for the engine to end, then kills the processes that the engine left behind.

The guard runs as a script (``python -I -S guard.py ENGINE_PID SESSION_ID MARKER``), so it imports no other engine
module. Its standard input is a pipe from the engine. Linux closes the pipe when the engine dies, even after ``kill
-9``. If a forked child inherited the pipe and keeps it open, a pidfd still reports the death.

The guard kills members of the engine's process session, processes with the engine's marker in their environment, and
all descendants of those processes. The marker (``KERNEL_TUI_ENGINE=...`` in ``/proc/PID/environ``) survives setsid and
double forks. The guard works only on Linux. On systems without ``/proc``, it finds no processes.
"""

# ruff: noqa: PTH112, PTH123, PTH208
# Importing pathlib would take longer than the rest of this process's startup.

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from subprocess import Popen

VARIABLE = "KERNEL_TUI_ENGINE"
"""Environment variable with the engine's marker, a UUID that is new for every engine."""

_PATIENCE_S = 10.0
_SCAN_EVERY_S = 0.02


class Guard:
    """The engine's handle to its guard process, which exits after the cleanup."""

    def __init__(self, session_id: int, marker: str) -> None:
        self._arguments = (str(os.getpid()), str(session_id), marker)
        self._pipe, self._process = self._start()
        os.register_at_fork(after_in_child=self._close_pipe)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ensure(self) -> None:
        """Restart the guard if it has ended."""
        if self._process.poll() is not None:
            self._close_pipe()
            self._pipe, self._process = self._start()

    def _close_pipe(self) -> None:
        self._pipe.close()

    def _start(self) -> tuple[IO[bytes], Popen[bytes]]:
        import subprocess

        environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env=environment,
        )
        assert process.stdin is not None
        return process.stdin, process


class Process(NamedTuple):
    """A process in ``/proc``. ``state`` is ``Z`` for a process that is dead but not yet reaped."""

    pid: int
    parent: int
    session: int
    state: str


def main(engine_pid: int, session_id: int, marker: str) -> None:
    """Wait for the engine to end, then kill its remaining processes. If ``session_id`` is 0, identify them only by the
    marker.
    """
    for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    wait_for_end(engine_pid)
    deadline = time.monotonic() + _PATIENCE_S
    clean = 0
    while clean < 3 and time.monotonic() < deadline:
        victims = left_behind(session_id, marker) - {os.getpid(), 1}
        clean = 0 if victims else clean + 1
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(_SCAN_EVERY_S)


def wait_for_end(engine_pid: int) -> None:
    """Return when the engine is dead. Watch its pidfd or, before Linux 5.3, the pipe on standard input."""
    waiting = [0]
    try:
        waiting = [os.pidfd_open(engine_pid)]
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        pass  # This system has no pidfd, so watch the pipe.
    if os.getppid() != engine_pid:
        return  # The engine died before pidfd_open, and the process id may be reused.
    select.select(waiting, [], [])


def left_behind(session_id: int, marker: str) -> set[int]:
    """Find the live processes that belong to the engine with this process session and marker."""
    processes = [process for process in read_processes() if process.state != "Z"]
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    wanted = f"{VARIABLE}={marker}".encode()
    reached = [p.pid for p in processes if (session_id and p.session == session_id) or _carries(p.pid, wanted)]
    found: set[int] = set()
    while reached:
        pid = reached.pop()
        if pid not in found:
            found.add(pid)
            reached.extend(children.get(pid, ()))
    return found


def read_processes() -> list[Process]:
    """List all processes in ``/proc``."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The command is in parentheses and may itself contain spaces and parentheses.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # The process ended in the meantime.
        found.append(Process(int(name), int(fields[1]), int(fields[3]), fields[0].decode()))
    return found


def _carries(pid: int, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return wanted in file.read().split(b"\0")
    except OSError:
        return False  # The process ended in the meantime, or belongs to another user.


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
