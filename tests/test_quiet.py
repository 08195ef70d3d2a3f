"""The load measurement counts other processes and excludes the tests."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.commandline import environment
from tests.patience import PATIENCE_S
from tests.quiet import REASON, Load, LoadMeter

pytestmark = pytest.mark.serial
SPIN = "while True: pass"


@contextlib.contextmanager
def another_program() -> Iterator[None]:
    """A process that keeps one core busy and whose parent has ended."""
    start = f"subprocess.Popen([sys.executable, '-c', {SPIN!r}], stdout=subprocess.DEVNULL)"
    pid = int(subprocess.check_output([sys.executable, "-c", f"import subprocess, sys; print({start}.pid)"], text=True))
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


def load_of_a_second() -> Load:
    meter = LoadMeter()
    time.sleep(1)
    return meter.load()


def test_another_program_is_load() -> None:
    with another_program():
        beside = load_of_a_second()
    assert not beside.is_quiet and "other processes" in str(beside)


def test_the_processes_of_the_tests_are_none() -> None:
    cores = os.cpu_count() or 1
    own = [psutil.Popen([sys.executable, "-c", SPIN]) for _ in range(cores)]
    meter, began = LoadMeter(), time.monotonic()
    used_s = -sum(one.cpu_times().user for one in own)
    time.sleep(2)
    load = meter.load()
    used_s += sum(one.cpu_times().user for one in own)
    for one in own:
        one.kill()
        one.wait()
    share = used_s / (time.monotonic() - began) / cores
    assert load.others < 1.0 - share / 2, "where nothing else runs, share is one"


def test_a_test_that_needs_a_quiet_machine_is_skipped_beside_another_program(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import quiet_machine\n")
    (tmp_path / "test_it.py").write_text("def test_time(quiet_machine): pass\n")
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]
    with another_program():
        said = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S).stdout
    assert re.search(
        rf"^SKIPPED \[1\] .*: {REASON}: steal \d+%, other processes \d+% of \d+ cores$", said, re.MULTILINE
    )
