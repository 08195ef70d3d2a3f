"""What a clock that seems to lie is called, by how much of the processor other programs have."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from engine.evaluation.clock import MISREPORT, Clock, Row
from engine.evaluation.control import Control
from engine.evaluation.messages import JudgeSettings
from engine.evaluation.neighbours import Neighbours
from engine.evaluation.rejected import Rejected

pytestmark = pytest.mark.serial


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Other programs keep every core busy."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def found(neighbours: Neighbours) -> Rejected:
    """What is said of a kernel whose calls in a row take ten times what it claims for one."""
    settings = JudgeSettings(
        kind="cpu",
        device_id="cpu",
        device_name="",
        threads=2,
        trials=8,
        max_pairs=100,
        deadline_s=10.0,
        memory_bytes=1 << 30,
        tolerance_fp32=1e-2,
        tolerance_other=1e-2,
        isolate=True,
    )
    clock = Clock(settings, neighbours, Control(), None)
    with pytest.raises(Rejected) as rejected:
        clock.check_in_a_row(
            [0.1] * 20, lambda count: Row(count, 0.1 * count, 1.0 * count), lambda: 1.0, lambda count: 0.0
        )
    return rejected.value


def test_on_a_quiet_machine_it_is_an_accusation() -> None:
    neighbours = Neighbours()
    time.sleep(0.5)
    assert (found(neighbours).status, found(neighbours).pattern) == ("cheating", MISREPORT)


def test_on_an_overloaded_machine_nothing_can_be_said() -> None:
    """Of calls on several threads each may be disturbed, however many there are."""
    with busy_cores():
        neighbours = Neighbours()
        time.sleep(0.5)
        said = found(neighbours)
    assert said.status == "error" and "no verdict on a machine this busy" in said.reason
