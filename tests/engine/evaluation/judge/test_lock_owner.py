"""The process that uses a device is reported by its pid and the command that the user typed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from engine.evaluation.judge.device_lock import alone, lock_path, queue_path
from engine.evaluation.judge.lock_owner import held_since, holders_of, keeper_of, known_as
from engine.system.child import is_below
from tests.commandline import environment

pytestmark = pytest.mark.skipif(not os.access("/proc/locks", os.R_OK), reason="this kernel hides its locks")
HOLD = """
import sys
from engine.evaluation.judge.device_lock import alone
with alone(sys.argv[1], lambda: False):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def device() -> Iterator[str]:
    name = f"test-holder-{os.getpid()}"
    yield name
    lock_path(name).unlink(missing_ok=True)
    queue_path(name).unlink(missing_ok=True)


def test_only_a_process_outside_of_the_family_keeps_a_device_from_it(device: str) -> None:
    assert holders_of(device) == [] and held_since(device) is None
    # Started by a shell that exits, so it is a foreign process.
    with subprocess.Popen(
        ["sh", "-c", 'exec 3<&0; "$0" -c "$1" "$2" <&3 & echo $!', sys.executable, HOLD, device],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
    ) as shell:  # fmt: skip
        assert shell.stdin is not None and shell.stdout is not None
        pid = int(shell.stdout.readline())
        assert shell.stdout.readline() == "held\n"
        assert keeper_of(device, os.getpid()) == pid and not is_below(pid, os.getpid())
        assert keeper_of(device, pid) is None
        known, command = known_as(pid)
        assert known == pid and "engine.evaluation.judge.device_lock import alone" in command
        shell.stdin.close()
        while holders_of(device):
            time.sleep(0.01)
    before = time.time()
    with alone(device, lambda: False):
        assert holders_of(device) == [(os.getpid(), True)]
        assert keeper_of(device, os.getpid()) is None and keeper_of(device, pid) == os.getpid()
        assert (held_since(device) or 0.0) >= before - 0.1


FORKED_FROM_C = """
import ctypes, os, sys
from engine.evaluation.judge.device_lock import alone
libc = ctypes.CDLL(None)
with alone(sys.argv[1], lambda: False):
    if (child := libc.fork()) == 0:
        libc.sleep(60)
    print(child, flush=True)
    os._exit(0)
"""
FIRST_IN_THE_QUEUE = """
import fcntl, os, sys
from engine.evaluation.judge.device_lock import queue_path
fcntl.flock(os.open(queue_path(sys.argv[1]), os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_whose_taker_has_ended_is_held_by_what_has_a_copy_of_its_descriptor(device: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKED_FROM_C, device], stdout=subprocess.PIPE, text=True, env=environment()
    ) as taker:
        assert taker.stdout is not None
        child = int(taker.stdout.readline())
        try:
            taker.wait(10)
            assert holders_of(device) == [(child, True)] and keeper_of(device, os.getpid()) == child
            os.kill(child, signal.SIGSTOP)
            while not known_as(child)[1].startswith(f"suspended; to resume it: kill -CONT {child}; "):
                time.sleep(0.01)
        finally:
            os.kill(child, signal.SIGKILL)
    while keeper_of(device, os.getpid()) is not None:
        time.sleep(0.01)
    assert "has ended" in known_as(taker.pid)[1]


def test_who_is_next_and_stands_still_keeps_the_device_too(device: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FIRST_IN_THE_QUEUE, device],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
    ) as first:  # fmt: skip
        assert first.stdout is not None
        pid = int(first.stdout.readline())
        assert keeper_of(device, 1) is None and keeper_of(device, os.getpid()) is None  # this process's own lock
        elsewhere = subprocess.Popen(["sleep", "60"])
        assert keeper_of(device, elsewhere.pid) == pid
        elsewhere.kill()
        elsewhere.wait()


def test_a_search_is_known_by_its_directory_and_a_command_by_its_words() -> None:
    engine = "import os, time; print(flush=True); time.sleep(60)"
    for words, expected in (
        (
            ["-c", engine, "-m", "engine.daemon.service", "/some/sessions/demo", "marker"],
            "the search in /some/sessions/demo",
        ),
        (["-c", engine, "-m", "engine.cluster.worker.judging_process", '{"trials":8}'], "a search on a cluster"),
        (["-c", engine], f"-c {engine}"),
    ):
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert known_as(process.pid) == (process.pid, expected)
            process.kill()
