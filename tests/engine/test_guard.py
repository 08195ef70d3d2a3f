"""After kill -9 of an engine, none of its processes survives, not even a detached one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.system.guard import VARIABLE, left_behind, read_processes
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
SLEEP = "import time; time.sleep(300)"

CHILDREN = {
    "plain child": "spawn()",
    "own process session": "spawn(start_new_session=True)",
    "cleared environment": "spawn(env={})",
    "cleared environment and own session, under a marked parent": "fork(lambda: spawn(env={}, start_new_session=True))",
    "double fork": "fork(lambda: (os.setsid(), fork(lambda: spawn(start_new_session=True), wait=False)), wait=False)",
    "forked, not executed, holding every inherited descriptor": "fork(lambda: time.sleep(300))",
    "stopped": "os.kill(spawn().pid, signal.SIGSTOP)",
    "compiler with an environment of its own": "threading.Thread(target=compiler, daemon=True).start()",
    "deaf to signals": "fork(lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(300)))",
}

ENGINE = """
import asyncio, os, pathlib, signal, subprocess, sys, threading, time
from engine.system.child import run_bounded
from engine.system.guard import Guard
def spawn(**how):
    return subprocess.Popen([sys.executable, "-c", %r], **how)
def fork(job, wait=True):
    if os.fork() == 0:
        job()
        if wait:
            time.sleep(300)
        os._exit(0)
def compiler():
    command = [sys.executable, "-c", %r]
    asyncio.run(run_bounded(command, pathlib.Path("/"), {}, limit_s=300, most_bytes=1))
guard = Guard(os.getsid(0), %r)
%s
time.sleep(1)
print(guard.pid, flush=True)
time.sleep(300)
"""


@contextlib.contextmanager
def engine(children: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """Yield a process that stands in for an engine. Its marker, guard and children are real."""
    marker = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-c", ENGINE % (SLEEP, SLEEP, marker, children)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, VARIABLE: marker, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    guard = int(process.stdout.readline())
    try:
        yield process, marker, guard
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        process.stdout.close()


def gone(pids: set[int]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if not pids & {process.pid for process in read_processes() if process.state != "Z"}:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_every_kind_of_child_goes_with_the_engine(how: signal.Signals) -> None:
    with engine("\n".join(CHILDREN.values())) as (process, marker, guard):
        family = left_behind(process.pid, marker) - {process.pid}
        assert len(family) >= len(CHILDREN)
        process.send_signal(how)
        process.wait(10)
        assert gone(family | {guard})


def test_a_guard_leaves_strangers_alone() -> None:
    with engine("spawn()") as (first, _, guard), engine("spawn()") as (second, marker, _):
        family = left_behind(second.pid, marker)
        first.kill()
        first.wait(10)
        assert gone({guard})
        assert left_behind(second.pid, marker) == family


def test_a_killed_guard_is_started_again() -> None:
    script = "os.kill(guard.pid, 9); time.sleep(0.5); guard.ensure(); spawn(start_new_session=True)"
    with engine(script) as (process, marker, guard):
        family = left_behind(process.pid, marker)
        process.kill()
        process.wait(10)
        assert gone(family | {guard})
