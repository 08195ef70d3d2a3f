"""An engine that lives and does nothing: said by every command that looks, with what to do."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.session import SessionPaths, create_session
from tests.commandline import ROOT, KernelTui

ENGINE = """\
import sys
from pathlib import Path
from engine.session import EngineLock, EventWriter, SessionPaths
paths = SessionPaths.at(Path(sys.argv[1]))
lock, writer = EngineLock(paths), EventWriter(paths)
writer.heartbeat("running")
writer.flush(5)
print("beats", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The process of an engine that has not beaten for a minute, on the session ``demo``."""
    paths = create_session(tmp_path / "sessions", "demo", "", "config.toml", 0)
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(paths.directory)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert engine.stdout is not None and engine.stdout.readline() == "beats\n"
    with sqlite3.connect(SessionPaths.at(paths.directory).database) as db:
        db.execute("UPDATE heartbeat SET time = time - 60")
    db.close()
    yield engine
    engine.kill()
    engine.communicate()


def test_commands_that_look_say_that_the_engine_stands_still_and_what_to_do(
    kernel_tui: KernelTui, stalled: subprocess.Popen[str]
) -> None:
    for command in (("show", "demo"), ("sessions", "demo")):
        shown = " ".join(kernel_tui(*command, env={"COLUMNS": "300"}).stdout.split())
        assert "STALLED" in shown and "no sign of life for 6" in shown and f"kill -9 {stalled.pid}" in shown

    os.kill(stalled.pid, signal.SIGSTOP)
    shown = kernel_tui("show", "demo").stdout
    assert f"it is suspended: kill -CONT {stalled.pid} lets it go on" in shown
    assert kernel_tui.json("sessions", "demo")[0]["state"] == "running"
