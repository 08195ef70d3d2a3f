"""A device that another process holds: ``eval`` says what it waits for, where nobody looks at a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from tests.commandline import environment
from tests.tui.test_cli import SCALAR, write_project

HOLD = """
import sys
from engine.evaluation.locks import alone
with alone("cpu", lambda: False):
    print("held", flush=True)
    sys.stdin.read()
"""
SHARE = """
import asyncio, sys
from engine.evaluation.locks import shared
async def main():
    async with shared("cpu"):
        print("held", flush=True)
        sys.stdin.read()
asyncio.run(main())
"""


@pytest.mark.parametrize(("script", "right"), [(HOLD, True), (SHARE, False)])
def test_eval_says_once_who_holds_the_device_and_then_what_it_found(tmp_path: Path, script: str, right: bool) -> None:
    write_project(tmp_path, rounds=1)
    (tmp_path / "own.cpp").write_text(SCALAR if right else SCALAR.replace("/= sum", "/= 1.5f * sum"))
    # Locks of its own: nobody else on this machine has to wait for this test.
    variables = environment() | {"TMPDIR": str(tmp_path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
    )
    assert holder.stdin is not None and holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    command = ["eval", "own.cpp", "--problem", "softmax.py", "--device", "cpu", "--quick"]
    command += [] if right else ["--json"]
    judged = subprocess.Popen(
        [sys.executable, "-m", "tui.cli", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=variables,
    )
    try:
        assert judged.stderr is not None
        said = judged.stderr.readline()
        holder.stdin.close()
        output, more = judged.communicate(timeout=100)
    finally:
        judged.kill()
        holder.kill()
        holder.wait()
    assert said.startswith("waiting for the device (") and "another process holds it" in said
    if script is HOLD and os.access("/proc/locks", os.R_OK):
        assert said.endswith(f", pid {holder.pid}\n")
    if right:
        assert judged.returncode == ExitCode.OK and "own.cpp: correct" in output
    else:
        assert judged.returncode == ExitCode.NOTHING_CORRECT
        assert json.loads(output)["status"] == "wrong"
    assert more == "", "it is said once"
