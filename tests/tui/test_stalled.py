"""If an engine has stalled, every command that shows the session says so and names a remedy."""

from __future__ import annotations

import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.exit_codes import ExitCode
from engine.session.store import SessionPaths, create_session, engine_liveness
from tests.commandline import NO_BYTECODE, ROOT, KernelTui
from tests.patience import PATIENCE_S
from tests.tui.test_cli import write_project

ENGINE = """\
import sys
from pathlib import Path
from engine.session.store import EngineLock, EventWriter, SessionPaths
paths = SessionPaths.at(Path(sys.argv[1]))
lock, writer = EngineLock(paths), EventWriter(paths)
writer.heartbeat("running")
writer.flush(5)
print("beats", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield an engine's process that has sent no heartbeat for a minute, on the session ``demo``."""
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
        assert "STALLED" in shown and re.search(r"no heartbeat for \d+ s", shown) and f"kill -9 {stalled.pid}" in shown

    os.kill(stalled.pid, signal.SIGSTOP)
    shown = kernel_tui("show", "demo").stdout
    assert f"it is suspended; to continue it, type: kill -CONT {stalled.pid}" in shown
    assert kernel_tui.json("sessions", "demo")[0]["state"] == "running"


def test_a_disk_that_fills_while_a_search_runs_is_what_the_engine_says_first_and_it_goes_on_with_room(
    kernel_tui: KernelTui, tmp_path: Path
) -> None:
    write_project(tmp_path, rounds=900)
    search = kernel_tui.start("config.toml", env=NO_BYTECODE)
    assert search.stdout is not None
    next(line for line in search.stdout if "round 0 done" in line)
    paths = SessionPaths.at(tmp_path / "sessions" / "demo")
    engine = psutil.Process(engine_liveness(paths).pid)
    engine.rlimit(psutil.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))  # the lock file still fits
    said = next(line for line in search.stdout if "the engine has stalled" in line)
    assert "cannot write to the session" in said and str(paths.database) in said and "Check for a full" in said
    assert "kill -9" not in said
    assert "STALLED, cannot write to the session" in kernel_tui("show", "demo").stdout
    engine.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    next(line for line in search.stdout if "the engine is running again" in line)
    assert kernel_tui("stop", "demo").returncode == ExitCode.OK
    search.communicate(timeout=PATIENCE_S)
    assert search.returncode == ExitCode.OK
