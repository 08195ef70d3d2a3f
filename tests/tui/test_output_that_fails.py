"""Standard output may be closed, on a full disk, or a pipe whose reader has exited."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from engine.session.store import SessionPaths, engine_liveness
from tests.commandline import KernelTui, environment
from tests.engine.proposers import canned
from tests.patience import PATIENCE_S
from tests.tui.test_cli import CONFIG

READS = ("sessions", "show by-hand", "show by-hand --json", "--help", "export by-hand --report -")


def in_shell(directory: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``kernel-tui COMMAND``, which may contain redirections."""
    line = f"{shlex.quote(sys.executable)} -m tui.cli.main {command}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=directory,
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_take_nothing(tmp_path: Path, streams: str) -> None:
    for command in READS:
        done = in_shell(tmp_path, f"{command} {streams}")
        assert done.returncode == 0 and done.stderr == "", (command, done.stderr)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line_and_a_code(tmp_path: Path, unbuffered: str) -> None:
    for command in READS:
        done = in_shell(tmp_path, f"{command} > /dev/full", PYTHONUNBUFFERED=unbuffered)
        assert done.returncode == ExitCode.STORAGE, command
        assert done.stderr == "Error: cannot write standard output: No space left on device\n", command


def test_an_error_keeps_its_code_if_both_streams_are_full(tmp_path: Path) -> None:
    assert in_shell(tmp_path, "sessions > /dev/full 2>&1").returncode == ExitCode.STORAGE


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "softmax.py").write_text(canned.PROBLEM)
    (tmp_path / "config.toml").write_text(CONFIG.format(rounds=500))
    yield tmp_path
    KernelTui(tmp_path).kill_engines()


@pytest.mark.parametrize(("output", "code"), [("> /dev/full", ExitCode.STORAGE), ("| true", ExitCode.FAILURE)])
def test_a_headless_search_without_output_says_that_it_keeps_running(
    project: Path, output: str, code: ExitCode
) -> None:
    done = in_shell(project, f"config.toml --headless {output}")
    assert done.returncode == code
    assert "the search keeps running. Attach: kernel-tui attach demo" in done.stderr
    assert "Traceback" not in done.stderr
    assert engine_liveness(SessionPaths.at(project / "sessions" / "demo")).running
