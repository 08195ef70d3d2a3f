"""While another process uses the device, ``eval`` reports that it is waiting, even without a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.exit_codes import ExitCode
from engine.session.records.events import DeviceAwaited, DeviceFree, Recorded, VerdictGiven
from engine.session.state.session_state import fold
from engine.session.store import SessionPaths, SessionReader, engine_liveness
from tests.commandline import environment
from tests.patience import PATIENCE_S
from tests.tui.test_cli import SCALAR, write_project
from tui.text.waiting import WaitLines, held_in_words

HOLD = """
import sys
from engine.evaluation.judge.device_lock import alone
with alone("cpu", lambda: False):
    print("held", flush=True)
    sys.stdin.read()
"""
SHARE = """
import asyncio, sys
from engine.evaluation.judge.device_lock import shared
async def main():
    async with shared("cpu", 60):
        print("held", flush=True)
        sys.stdin.read()
asyncio.run(main())
"""


HELD_S = 13.0
"""Seconds for which the device is in use, which exceeds the time budget of the search."""

pytestmark = pytest.mark.skipif(not os.access("/proc/locks", os.R_OK), reason="this kernel hides its locks")


@pytest.mark.parametrize(("script", "right"), [(HOLD, True), (SHARE, False)])
def test_eval_says_once_who_holds_the_device_and_then_what_it_found(tmp_path: Path, script: str, right: bool) -> None:
    write_project(tmp_path, rounds=1)
    (tmp_path / "own.cpp").write_text(SCALAR if right else SCALAR.replace("/= sum", "/= 1.5f * sum"))
    # Separate locks, so that no other process of this machine waits for this test.
    variables = environment() | {"TMPDIR": str(tmp_path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
    )
    assert holder.stdin is not None and holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    command = ["eval", "own.cpp", "--problem", "softmax.py", "--device", "cpu", "--quick"]
    command += [] if right else ["--json"]
    judged = subprocess.Popen(
        [sys.executable, "-m", "tui.cli.main", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=variables,
    )
    try:
        assert judged.stderr is not None
        said = next(line for line in judged.stderr if line.startswith("waiting for the device"))
        holder.stdin.close()
        output, more = judged.communicate(timeout=PATIENCE_S)
    finally:
        judged.kill()
        holder.kill()
        holder.wait()
    assert said.startswith("waiting for the device (")
    assert f"in use by pid {holder.pid} (-c import" in said
    if right:
        assert judged.returncode == ExitCode.OK and "own.cpp: correct" in output
        seconds = re.search(r"seconds .*queue ([0-9.]+), .*waiting ([0-9.]+), start", output)
        assert seconds is not None and float(seconds[1]) < 0.5 and float(seconds[2]) >= 1.0
    else:
        assert judged.returncode == ExitCode.NOTHING_CORRECT
        found = json.loads(output)
        assert found["status"] == "wrong" and found["stage_s"]["waiting"] >= 1.0
    assert "waiting for the device" not in more, "it is said once"


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (DeviceAwaited(device="g", pid=7, command="eval"), "in use by pid 7 (eval)"),
        (DeviceAwaited(device="g", pid=7, held_since=988.0), "in use by pid 7, for 0:12"),
        (
            DeviceAwaited(device="g", pid=7, command="train.py", needed_bytes=24 * 10**9, free_bytes=32 * 10**8),
            "24 GB of memory needed, 3.2 GB free; pid 7 (train.py) is using most of the rest",
        ),
        (
            DeviceAwaited(device="g", pid=0, needed_bytes=24 * 10**9, free_bytes=0),
            "24 GB of memory needed, 0 bytes free; other processes are using the rest",
        ),
    ],
)
def test_who_keeps_a_device_or_its_memory(wait: DeviceAwaited, words: str) -> None:
    assert held_in_words(wait, 1000.0) == words


def test_short_waits_have_no_line_and_many_of_them_one_a_minute() -> None:
    said: list[tuple[float, str]] = []
    lines = WaitLines()
    for number, seconds in enumerate([2.0, 2.0, 2.0, 30.0, 40.0, 1.5]):
        began = 1000.0 + 20.0 * number if seconds < 10 else 1000.0 + 60.0 * number
        awaited = DeviceAwaited(device="cpu", pid=number, command="eval", seconds=1.0)
        for time_, event in ((began + 1, awaited), (began + seconds, DeviceFree(device="cpu", seconds=seconds))):
            if (line := lines.line_of(Recorded(0, time_, event))) is not None:
                said.append((time_, line))
    assert said == [
        (1042.0, "waited 0:06 for the device, in 3 waits: in use by pid 2 (eval)"),
        (1210.0, "waited 0:30 for the device: in use by pid 3 (eval)"),
        (1280.0, "waited 0:40 for the device: in use by pid 4 (eval)"),
    ]


def test_a_wait_that_lasts_is_said_once_while_it_does() -> None:
    lines = WaitLines()
    lines.line_of(Recorded(0, 101.0, DeviceAwaited(device="cpu", pid=7, command="eval", held_since=90.0, seconds=1.0)))
    assert lines.lasting(104.0) is None
    assert lines.lasting(106.0) == (
        "waiting for the device: in use by pid 7 (eval), for 0:16; the time budget is paused"
    )
    assert lines.lasting(200.0) is None
    assert lines.line_of(Recorded(0, 300.0, DeviceFree(device="cpu", seconds=200.0))) is None


def test_a_search_names_who_holds_the_device_and_its_minutes_wait_too(tmp_path: Path) -> None:
    write_project(tmp_path, rounds=1)
    config = (tmp_path / "config.toml").read_text() + "[budget]\nminutes = 20\n"
    (tmp_path / "config.toml").write_text(config)
    variables = environment() | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with subprocess.Popen(
            [sys.executable, "-m", "tui.cli.main", "config.toml"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=variables,
        ) as search:  # fmt: skip
            assert search.stdout is not None
            said = next(line for line in search.stdout if "waiting for the device" in line)
            assert f"in use by pid {holder.pid} (-c import" in said
            assert "the time budget is paused" in said
            time.sleep(HELD_S)
            holder.stdin.close()
            output, _ = search.communicate(timeout=PATIENCE_S)
    assert search.returncode == ExitCode.OK, output
    assert "correct" in output and "best softmax" in output
    with SessionReader(SessionPaths.at(tmp_path / "sessions" / "demo")) as reader:
        state = fold(reader.read())
    assert state.created_at + HELD_S + state.search_seconds < state.time


def test_a_judge_that_a_signal_has_stopped_is_named_and_the_search_goes_on_with_it(tmp_path: Path) -> None:
    write_project(tmp_path, rounds=1)
    with subprocess.Popen(
        [sys.executable, "-m", "tui.cli.main", "config.toml"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
        env=environment() | {"TMPDIR": str(tmp_path)},
    ) as search:  # fmt: skip
        assert search.stdout is not None
        next(line for line in search.stdout if "round 0" in line)
        engine = psutil.Process(engine_liveness(SessionPaths.at(tmp_path / "sessions" / "demo")).pid)
        judge = next(one for one in engine.children() if "engine.evaluation.judge.start" in one.cmdline())
        judge.suspend()
        said = next(line for line in search.stdout if "waiting for the device" in line)
        assert (
            f"pid {judge.pid} (kernel-tui's own process, stopped by a signal; to resume it: kill -CONT {judge.pid}"
            in said
        )
        judge.resume()
        output, _ = search.communicate(timeout=PATIENCE_S)
    assert search.returncode == ExitCode.OK and "best softmax" in output, output
    with SessionReader(SessionPaths.at(tmp_path / "sessions" / "demo")) as reader:
        verdicts = [one.event.verdict for one in reader.read() if isinstance(one.event, VerdictGiven)]
    assert verdicts and all(verdict.status == "correct" for verdict in verdicts)
