"""Who holds a device is told by pid and by the command that a person knows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from engine.evaluation.holder import held_since, holders_of, is_below, keeper_of, known_as
from engine.evaluation.locks import alone, lock_path
from tests.commandline import environment

pytestmark = pytest.mark.skipif(not os.access("/proc/locks", os.R_OK), reason="this kernel hides its locks")
HOLD = """
import sys
from engine.evaluation.locks import alone
with alone(sys.argv[1], lambda: False):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def device() -> Iterator[str]:
    name = f"test-holder-{os.getpid()}"
    yield name
    lock_path(name).unlink(missing_ok=True)
    lock_path(name).with_suffix(".queue").unlink(missing_ok=True)


def test_only_a_process_outside_of_the_family_keeps_a_device_from_it(device: str) -> None:
    assert holders_of(device) == [] and held_since(device) is None
    # Started by a shell that ends: a process of somebody else's.
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
        assert known == pid and "engine.evaluation.locks import alone" in command
        shell.stdin.close()
        while holders_of(device):
            time.sleep(0.01)
    before = time.time()
    with alone(device, lambda: False):
        assert holders_of(device) == [(os.getpid(), True)]
        assert keeper_of(device, os.getpid()) is None and keeper_of(device, pid) == os.getpid()
        assert (held_since(device) or 0.0) >= before - 0.1


def test_a_search_is_known_by_its_directory_and_a_command_by_its_words() -> None:
    engine = "import os, time; print(flush=True); time.sleep(60)"
    for words, expected in (
        (["-c", engine, "-m", "engine.service", "/some/sessions/demo", "marker"], "the search in /some/sessions/demo"),
        (["-c", engine], f"-c {engine}"),
    ):
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert known_as(process.pid) == (process.pid, expected)
            process.kill()
