"""Reference and kernel of a pair run on one core."""

from __future__ import annotations

import os
import subprocess
import sys

from engine.evaluation.timing.cpu_contention import on_one_core


def test_both_run_on_one_core_and_afterwards_where_they_ran_before() -> None:
    before = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with on_one_core(process.pid):
            cores = os.sched_getaffinity(0)
            assert len(cores) == 1 and cores <= before
            assert os.sched_getaffinity(process.pid) == cores
        assert os.sched_getaffinity(0) == os.sched_getaffinity(process.pid) == before
        process.kill()


def test_a_process_that_has_ended_is_no_error() -> None:
    before = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        with on_one_core(process.pid):
            assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
