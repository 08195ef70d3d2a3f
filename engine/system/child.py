"""Child processes: run them within limits, kill their process groups, and read their state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.system.guard import VARIABLE

REAP_S = 5.0
_LOOK_S = 0.25


async def end_group(process: Process) -> None:
    """Kill ``process``, a process-group leader, and the rest of the group.

    Call this function only for a process that is alive or has just ended, because the system reuses process ids.
    ``asyncio`` waits not only for the process but also for its pipes. A process that left the group can keep the pipes
    open, so this function waits at most ``REAP_S`` seconds for them.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()  # Otherwise the pipe closes after the event loop ends, and Python prints a traceback.
    try:
        await asyncio.wait_for(process.wait(), REAP_S)
    except TimeoutError:  # Close the other pipes for the same reason.
        process._transport.close()  # type: ignore[attr-defined]


class Overrun(Exception):
    """A command exceeded a limit, so :func:`run_bounded` killed the command. ``str()`` names the limit; ``output``
    holds the command's output.
    """

    def __init__(self, text: str, output: str) -> None:
        super().__init__(text)
        self.output = output


async def run_bounded(
    command: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    *,
    limit_s: float,
    most_bytes: int,
    limits: Mapping[int, int] = {},
) -> tuple[int, str]:
    """Run ``command`` within limits, then kill the rest of its process group.

    The command also receives the engine's marker, so that the guard can find it after ``kill -9`` of the engine.

    Args:
        limit_s: Time limit in seconds.
        most_bytes: Maximum size of the output in bytes.
        limits: Resource limits of the process, keyed by constants of the ``resource`` module.

    Returns:
        The exit code and the output (stdout and stderr).

    Raises:
        Overrun: The command exceeded ``limit_s`` or ``most_bytes``.
    """
    marker = {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**environment, **marker},
        start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    output = bytearray()
    overran = ""
    try:
        for limit, most in limits.items():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                resource.prlimit(process.pid, limit, (most, most))
        async with asyncio.timeout(limit_s):
            while len(output) <= most_bytes and (chunk := await process.stdout.read(1 << 16)):
                output += chunk
            if len(output) > most_bytes:
                overran = f"printed more than {most_bytes >> 20} MiB"
            else:
                await process.wait()
    except TimeoutError:
        overran = f"did not finish within {limit_s:g} s"
    finally:
        await end_group(process)
    if overran:
        raise Overrun(overran, output.decode(errors="replace"))
    return process.returncode or 0, output.decode(errors="replace")


async def end_what_it_leaves(process: Process) -> None:
    """Wait until ``process``, a process-group leader, has ended; then kill the rest of the group.

    Code in a problem file can fork processes from C. Forked processes inherit the device lock, and the pipe that
    signals the end of ``process``.
    """
    while process.returncode is None:  # noqa: ASYNC110 - ``process.wait`` would also wait for that pipe.
        await asyncio.sleep(_LOOK_S)
    await end_group(process)


def is_suspended(pid: int) -> bool:
    """Return whether a signal has stopped the process ``pid``. False if the process no longer exists."""
    return state_of(pid) in ("T", "t")


def is_below(pid: int, ancestor: int) -> bool:
    """Return whether ``pid`` is ``ancestor`` or one of its descendants."""
    while pid > 1 and pid != ancestor:
        pid = parent_of(pid)
    return pid == ancestor


def state_of(pid: int) -> str:
    """The process's state in ``/proc``: ``T`` if suspended, ``Z`` if dead but not yet reaped, "" if unreadable."""
    return _stat(pid)[0]


def parent_of(pid: int) -> int:
    """The parent's process id; 0 if unreadable."""
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """Read the state, the parent and the later fields of ``/proc/PID/stat``. Split at the last parenthesis, because the
    command may itself contain parentheses.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() or ["", "0"]
    except OSError:
        return ["", "0"]
