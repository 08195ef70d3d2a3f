"""Child processes end together with their descendants, no matter which files these keep open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import pytest

from engine.system import child
from engine.system.child import end_group, end_what_it_leaves
from tests.patience import PATIENCE_S


async def _shell(script: str) -> tuple[asyncio.subprocess.Process, int]:
    """A shell that leads a process group and prints its pid first."""
    process = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=asyncio.subprocess.PIPE, process_group=0)
    assert process.stdout is not None
    return process, int(await process.stdout.readline())


async def test_what_a_process_leaves_in_its_group_ends_with_it() -> None:
    process, left = await _shell(f"sleep {2 * PATIENCE_S} & echo $!")
    assert process.stdout is not None
    reaper = asyncio.create_task(end_what_it_leaves(process))
    assert await asyncio.wait_for(process.stdout.read(), PATIENCE_S) == b""  # the holder of the other end is gone
    await reaper
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(left, 0)
            await asyncio.sleep(0.01)


async def test_who_has_left_the_group_and_keeps_the_pipe_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "REAP_S", 0.5)
    process, gone = await _shell(f"setsid sh -c 'echo $$; exec sleep {2 * PATIENCE_S}' & wait")
    try:
        begun = time.monotonic()
        await end_group(process)
        assert process.returncode == -signal.SIGKILL and time.monotonic() - begun < PATIENCE_S
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(gone, signal.SIGKILL)
