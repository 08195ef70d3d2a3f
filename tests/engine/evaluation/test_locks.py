"""The device is free again however its holder ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from engine.evaluation.locks import alone, lock_path, queue_path, shared

DEVICE = f"test-{os.getpid()}"


@pytest.fixture(autouse=True)
def no_files_left() -> Iterator[None]:
    yield
    for path in (lock_path(DEVICE), queue_path(DEVICE)):
        path.unlink(missing_ok=True)


HOLDS_AND_FORKS = """
import os, sys, time
from engine.evaluation.locks import alone
with alone(sys.argv[1], lambda: False):
    child = os.fork()
    if child == 0:
        time.sleep(60)
    print(child, flush=True)
    time.sleep(60 if sys.argv[2] == "killed" else 0)
time.sleep(60)
"""


@pytest.mark.parametrize("end", ["leaves", "killed"])
def test_who_was_forked_from_the_holder_holds_nothing(end: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS_AND_FORKS, DEVICE, end], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            if end == "killed":
                holder.kill()
            deadline = time.monotonic() + 10
            with alone(DEVICE, lambda: time.monotonic() > deadline) as held:
                assert held
                os.kill(child, 0)  # it lives
        finally:
            os.kill(child, signal.SIGKILL)
            holder.kill()


async def test_a_builder_whose_event_loop_stands_still_does_not_keep_the_device() -> None:
    begun = time.monotonic()
    async with shared(DEVICE, 0.3):
        with alone(DEVICE, lambda: time.monotonic() > begun + 10) as held:  # nothing else runs in this loop
            assert held and time.monotonic() - begun > 0.25
