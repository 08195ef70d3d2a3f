"""The end of a child process and of what it has started, awaited within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process

REAP_S = 5.0
_LOOK_S = 0.25


async def end_group(process: Process) -> None:
    """Kill ``process``, which leads a process group, and all that is left in that group.

    For a process that lives, or has ended just now: later its number may be another's. asyncio waits for a process
    until its pipes are closed too; one that has left the group may keep those for ever, so that is waited for some
    seconds and no longer.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        await asyncio.wait_for(process.wait(), REAP_S)
    except TimeoutError:
        # Or its pipes are closed when the event loop is gone, with a traceback.
        process._transport.close()  # type: ignore[attr-defined]


async def end_what_it_leaves(process: Process) -> None:
    """Once ``process``, which leads a process group, has ended, kill what is left of that group.

    What a problem forks from C has copies of all that its process had open: the device's lock, and the pipe whose end
    tells of the process's.
    """
    while process.returncode is None:  # noqa: ASYNC110 - ``wait`` would wait for that pipe
        await asyncio.sleep(_LOOK_S)
    await end_group(process)
