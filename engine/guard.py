"""Nothing outlives the engine: a tiny process that waits for its end and kills what it left behind.

Run as a script (``python -I -S guard.py ENGINE_PID SESSION_ID MARKER``), so it must import nothing of ours. Its
standard input is the read end of a pipe whose other end the engine holds; the kernel closes that for any death,
``kill -9`` included. A pidfd tells the same even where a forked child inherited the pipe.

What belongs to an engine: processes of its process session, processes that carry its marker in their environment
(``KERNEL_TUI_ENGINE=...`` in ``/proc/PID/environ``, which survives setsid and double forks), and all descendants of
those. Linux only: elsewhere there is no ``/proc`` and the guard finds nothing.
"""

# ruff: noqa: PTH112, PTH123, PTH208
# pathlib costs more to import than all the rest of this process.

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
"""The engine's marker in the environment: a UUID, new for every engine."""

_PATIENCE_S = 10.0
_SCAN_EVERY_S = 0.02


class Guard:
    """The engine's handle on its guard. The guard ends by itself once it has done its work."""

    def __init__(self, session_id: int, marker: str) -> None:
        self._arguments = (str(os.getpid()), str(session_id), marker)
        self._pipe, self._process = self._start()
        os.register_at_fork(after_in_child=self._close_pipe)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ensure(self) -> None:
        """Start the guard again if somebody killed it."""
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
    """One line of ``/proc``: ``state`` is ``Z`` for a process that is dead but not yet reaped."""

    pid: int
    parent: int
    session: int
    state: str


def main(engine_pid: int, session_id: int, marker: str) -> None:
    """Wait for the engine's end, then kill what is left of it. ``session_id`` 0: go by the marker alone."""
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
    """Return once the engine is dead: its pidfd says so, or (before Linux 5.3) the pipe on standard input ends."""
    waiting = [0]
    try:
        waiting = [os.pidfd_open(engine_pid)]
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        pass  # no pidfd on this system: the pipe it is
    if os.getppid() != engine_pid:
        return  # it died before the pidfd was opened, which may be another process's by now
    select.select(waiting, [], [])


def left_behind(session_id: int, marker: str) -> set[int]:
    """Living processes that belong to the engine with this process session and marker."""
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
    """All processes of this machine that ``/proc`` shows."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The command stands in brackets and may itself hold spaces and brackets.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        found.append(Process(int(name), int(fields[1]), int(fields[3]), fields[0].decode()))
    return found


def _carries(pid: int, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return wanted in file.read().split(b"\0")
    except OSError:
        return False  # ended meanwhile, or another user's


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
