"""The device is released no matter how the process that locked it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from engine.evaluation.judge.device_lock import (
    alone,
    asking_for_memory,
    is_awaited,
    lock_path,
    memory_is_asked_for,
    queue_path,
    shared,
)
from tests.patience import PATIENCE_S

DEVICE = f"test-{os.getpid()}"


@pytest.fixture(autouse=True)
def no_files_left() -> Iterator[None]:
    yield
    for path in (lock_path(DEVICE), queue_path(DEVICE), lock_path(DEVICE).with_suffix(".memory")):
        path.unlink(missing_ok=True)


HOLDS_AND_FORKS = """
import os, sys, time
from engine.evaluation.judge.device_lock import alone
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
            deadline = time.monotonic() + PATIENCE_S
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


WAITS = """
import sys
from engine.evaluation.judge.device_lock import alone, is_awaited, memory_is_asked_for
print("waits", flush=True)
with alone(sys.argv[1], lambda: memory_is_asked_for(sys.argv[1])) as held:
    print("held" if held else "asked for memory", flush=True)
"""


@pytest.mark.parametrize("asks", [False, True])
def test_who_holds_the_device_knows_that_another_waits_and_can_ask_it_for_memory(asks: bool) -> None:
    with alone(DEVICE, lambda: False):
        assert not is_awaited(DEVICE) and not memory_is_asked_for(DEVICE)
        other = subprocess.Popen([sys.executable, "-c", WAITS, DEVICE], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None and other.stdout.readline() == "waits\n"
        deadline = time.monotonic() + PATIENCE_S
        while not is_awaited(DEVICE) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert is_awaited(DEVICE)
        if asks:
            with asking_for_memory(DEVICE):
                assert other.wait(PATIENCE_S) == 0
            assert not is_awaited(DEVICE)
    assert other.communicate(timeout=PATIENCE_S)[0] == ("asked for memory\n" if asks else "held\n")
    assert not memory_is_asked_for(DEVICE)
