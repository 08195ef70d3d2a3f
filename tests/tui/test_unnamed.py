"""What commands do about a session, problem or file that the command line does not name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from engine.session.store import SessionPaths
from tests.commandline import KernelTui
from tui.cli.shared.common import Failure
from tui.cli.steering.send import problem_id

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "recorded"


def test_resume_takes_the_only_search_that_stopped_or_lists_them(kernel_tui: KernelTui) -> None:
    nothing = kernel_tui("resume", "--headless")
    assert nothing.returncode == ExitCode.NO_SESSION and "kernel-tui sessions" in nothing.stderr
    for name in ("one", "another"):
        shutil.copytree(stopped(), kernel_tui.directory / "sessions" / name)
    listed = kernel_tui("resume", "--headless")
    assert listed.returncode == ExitCode.USAGE
    assert "kernel-tui resume one" in listed.stderr and "kernel-tui resume another" in listed.stderr


def stopped() -> Path:
    """Return a recorded session whose search stopped early."""
    from engine.session.store import summarize

    folders = (file.parent for file in sorted(RECORDED.glob("*/session.db")))
    return next(one for one in folders if summarize(SessionPaths.at(one)).state in ("stopped", "died"))


def test_an_idea_or_kernel_implies_its_problem(tmp_path: Path) -> None:
    paths = SessionPaths.at(shutil.copytree(ROOT / "sessions" / "by-hand", tmp_path / "by-hand"))
    assert problem_id(paths, None, "v34") == "conv2d_relu_maxpool"
    assert problem_id(paths, None, "i1") in ("softmax", "layernorm", "conv2d_relu_maxpool")
    with pytest.raises(Failure, match="has 3 problems"):
        problem_id(paths, None)


def test_export_does_not_flood_a_terminal(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "sessions" / "by-hand", tmp_path / "sessions" / "by-hand")
    command = [sys.executable, "-P", "-m", "tui.cli.main", "export", "by-hand", "--best", "softmax"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ours, theirs = os.openpty()
    try:
        ran = subprocess.run(
            command, stdout=theirs, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment, check=False
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert ran.returncode == ExitCode.USAGE and "--output softmax_new.py" in ran.stderr
