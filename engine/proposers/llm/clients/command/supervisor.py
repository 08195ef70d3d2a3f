"""The supervisor: a small process that runs one program, and kills the program's descendants when the call ends.

The supervisor runs as a script (``python -I -S supervisor.py CONTROL_FD PARENT_DIRECTORY VARIABLES PROGRAM
ARGUMENTS...``), so it imports no other engine module. The program inherits stdin, stdout, stderr, and the environment
variables in the comma-separated list ``VARIABLES``. The program runs in a new directory in ``PARENT_DIRECTORY``. The
supervisor deletes the new directory at the end.

The call ends when the program exits, or when the engine closes its end of the pipe ``CONTROL_FD``. Linux closes the
pipe when the engine dies, even after ``kill -9``. The supervisor is a child subreaper: Linux makes the supervisor the
parent of every descendant that loses its own parent. Therefore a descendant cannot escape through ``setsid``, a double
fork or a changed environment. Once the supervisor has no children left, all descendants have exited.

The supervisor ends with the program's exit code, or with the signal that killed the program.
"""

# ruff: noqa: PTH102, PTH123, PTH208
# Importing pathlib would take longer than the rest of this process's startup.

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CANNOT_RUN = 127
"""Exit code if the program does not start, as in a shell."""
_PATIENCE_S = 4.0
"""Seconds to wait for killed processes to exit. The supervisor cannot kill other users' processes, such as
those of ``sudo``.
"""
_LOOK_S = 0.01


def main(control: int, parent: str, variables: str, command: list[str]) -> int:
    """Run ``command`` until the call ends. Returns a ``Popen.returncode``, which is negative for a signal."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # A forked copy of the engine may keep the pipe open.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # Use a handler, because the program would inherit SIG_IGN.
    directory = os.path.join(parent, f"kernel-tui-command-{os.getpid()}-{os.urandom(4).hex()}")  # noqa: PTH118
    os.mkdir(directory, 0o700)
    try:
        try:
            program = subprocess.Popen(
                command,
                cwd=directory,
                # Python itself may have added LC_CTYPE to the environment (PEP 538).
                env={name: os.environ[name] for name in variables.split(",") if name in os.environ},
                start_new_session=True,
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
            )
        except OSError as error:
            print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            return _CANNOT_RUN
        _release_streams()
        try:
            _wait(program, control, woken)
        finally:
            _kill_descendants(program)
        return program.returncode if program.returncode is not None else -signal.SIGKILL
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _release_streams() -> None:
    """Close stdin, stdout and stderr, so that each pipe ends when the program and its descendants have closed it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _wait(program: subprocess.Popen[bytes], control: int, woken: int) -> None:
    """Wait until the program exits, or until the engine or a signal ends the call."""
    while program.poll() is None:
        readable, _, _ = select.select([control, woken], [], [])
        if control in readable:
            return
        if set(os.read(woken, 4096)) - {signal.SIGCHLD}:
            return
        # Without this call, orphaned descendants would remain zombies until the program exits.
        _reap(program)


def _kill_descendants(program: subprocess.Popen[bytes]) -> None:
    """Kill all descendants, and wait until all have exited."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not _reap(program):
            return
        time.sleep(_LOOK_S)


def _reap(program: subprocess.Popen[bytes]) -> bool:
    """Reap all dead children. Returns True if live children remain."""
    while True:
        program.poll()  # Popen must reap its own process to learn the exit code.
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        if found is None:
            return True
        if found.si_pid != program.pid:
            os.waitpid(found.si_pid, 0)


def _descendants() -> list[int]:
    """Search ``/proc`` for all live descendants of this process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The command's name is in parentheses and may itself contain spaces and parentheses.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # The process ended in the meantime.
        if state != b"Z":
            children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    below = children.get(os.getpid(), [])
    while below:
        pid = below.pop()
        found.append(pid)
        below.extend(children.get(pid, ()))
    return found


def _end_like(returncode: int) -> None:
    """End this process with the program's exit code or signal."""
    if returncode < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL and SIGSTOP have no handlers.
            signal.signal(-returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -returncode)
    os._exit(returncode if returncode >= 0 else 128 - returncode)


if __name__ == "__main__":
    _end_like(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
