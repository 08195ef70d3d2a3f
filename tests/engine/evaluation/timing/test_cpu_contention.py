"""How the judge notices that a kernel had to wait for a core."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine.evaluation.timing.cpu_contention import CpuContention, waiting_s

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


def test_threads_that_share_a_core_are_disturbed() -> None:
    with _process(_SHARING_A_CORE) as pid:
        contention = CpuContention(pid)
        before = waiting_s(pid)
        time.sleep(0.5)
        assert waiting_s(pid) - before > 0.2
        assert contention.disturbs()


def test_a_process_that_sleeps_does_not_wait_for_a_core() -> None:
    with _process(_SLEEPING) as pid:
        time.sleep(0.2)
        before = waiting_s(pid)
        time.sleep(0.5)
        assert waiting_s(pid) - before < 0.05


def test_a_process_that_has_ended_counts_as_not_waiting() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert waiting_s(process.pid) == 0.0
    assert waiting_s(None) == 0.0
