"""How the judge notices that a kernel had to wait for a core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine.evaluation.timing.cpu_contention import CpuContention, _waited, schedule_of

_SHARING_A_CORE = """\
import hashlib, os, threading
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
def work():
    while True:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10_000)  # without the GIL
threading.Thread(target=work).start()
print("ready", flush=True)
work()
"""
_SLEEPING = """\
import time
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def _process(source: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _waited_s(pid: int) -> float:
    return max((waited for _, waited in schedule_of(pid).values()), default=0.0)


def test_threads_that_share_a_core_are_disturbed() -> None:
    with _process(_SHARING_A_CORE) as pid:
        contention, before_s = CpuContention(pid), _waited_s(pid)
        time.sleep(0.5)
        if not schedule_of(pid):
            pytest.skip("this system does not count how long threads wait for a core")
        assert _waited_s(pid) - before_s > 0.1
        assert contention.disturbed()


def test_the_waits_of_a_process_with_more_busy_threads_than_cores_do_not_count() -> None:
    cores = len(os.sched_getaffinity(0))
    before = {str(number): (1.0, 1.0) for number in range(cores + 1)}
    after = {thread: (ran + 0.4, waited + 0.2) for thread, (ran, waited) in before.items()}
    assert not _waited(before, after, 0.1)
    del after["0"]
    assert _waited(before, after, 0.1)
    assert not _waited(before, after, 0.3)


def test_a_process_that_sleeps_does_not_wait_for_a_core() -> None:
    with _process(_SLEEPING) as pid:
        time.sleep(0.2)
        before_s = _waited_s(pid)
        time.sleep(0.5)
        assert _waited_s(pid) - before_s < 0.05


def test_a_process_that_has_ended_has_no_schedule() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert schedule_of(process.pid) == {}
    assert schedule_of(None) == {}
