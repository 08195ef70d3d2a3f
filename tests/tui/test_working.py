"""The line that says what a command does while it works."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from tui.working import working
with working("inspecting") as work:
    work.say("k.cpp: [bold]building\\x1b]0;title\\x07")
    import time; time.sleep(0.6)
print("the answer")
"""


@pytest.mark.parametrize("terminal", [True, False])
def test_it_is_shown_on_a_terminal_alone(terminal: bool) -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(Path.cwd())}
    try:
        stderr = slave if terminal else subprocess.PIPE
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=stderr, env=environment, timeout=60
        )
        os.set_blocking(master, False)
        try:
            shown = os.read(master, 65536) if terminal else ran.stderr
        except BlockingIOError:
            shown = b""
    finally:
        os.close(master)
        os.close(slave)
    assert ran.returncode == 0
    assert ran.stdout == b"the answer\n"
    assert (b"[bold]building" in shown) == terminal
    assert b"\x1b]0;" not in shown
    if not terminal:
        assert shown == b""
