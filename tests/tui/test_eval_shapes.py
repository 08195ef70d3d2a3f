"""``kernel-tui eval`` as a user runs it, at other sizes or with a custom config, including when it is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from tests.commandline import KernelTui, environment
from tests.patience import PATIENCE_S

PROBLEM = """\
import torch

ROWS, COLUMNS = 200, 1000

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sqrt(x)

def get_inputs():
    return [torch.rand(ROWS, COLUMNS)]
"""
KERNEL = """\
#include <cmath>
extern "C" int launch(const float* x, float* out, void*) {
    for (long long i = 0; i < 200 * 1000; i++)
        out[i] = std::sqrt(x[i]);
    return 0;
}
"""


@pytest.fixture
def run(tmp_path: Path) -> KernelTui:
    (tmp_path / "root.py").write_text(PROBLEM)
    (tmp_path / "root.cpp").write_text(KERNEL)
    (tmp_path / "quick.toml").write_text('[evaluation]\ndevice = "cpu"\ntrials = 3\nmax_pairs = 8\n')
    return KernelTui(tmp_path)


def test_a_kernel_that_is_right_at_its_own_sizes_only(run: KernelTui) -> None:
    shapes = ("--shapes", "ROWS=100,COLUMNS=2000", "--shapes", "ROWS=300")
    command = ("eval", "root.cpp", "--problem", "root.py", "--config", "quick.toml", "--quick")
    judged = run(*command, *shapes, "--json", timeout=PATIENCE_S)
    assert judged.returncode == ExitCode.NOTHING_CORRECT, judged.stderr
    found = run.decode(judged.stdout)
    assert found["verdict"]["status"] == "correct", found["verdict"]["reason"]
    assert [(one["sizes"], one["shapes"], one["status"]) for one in found["at_sizes"]] == [
        ({"ROWS": 100, "COLUMNS": 2000}, "x (100, 2000)", "correct"),
        ({"ROWS": 300}, "x (300, 1000)", "wrong"),
    ]


def test_sizes_that_no_machine_has_room_for_are_said_in_a_line(run: KernelTui) -> None:
    sizes = ("--shapes", "ROWS=2000000,COLUMNS=3000000")
    judged = run("eval", "root.cpp", "--problem", "root.py", "--config", "quick.toml", "--quick", *sizes)
    assert judged.returncode == ExitCode.NOTHING_CORRECT and "rror" not in judged.stderr
    assert "not enough memory: the problem needs at least 96 TB" in judged.stdout
    assert "a search measures them once, so its % SOL can differ" in judged.stdout


@pytest.mark.parametrize("after_s", [2.0, 6.0])
def test_a_killed_command_leaves_no_directory_behind(run: KernelTui, tmp_path: Path, after_s: float) -> None:
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "tui.cli.main", "eval", "root.cpp", "--problem", "root.py", "--config", "quick.toml"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd=tmp_path, env=environment() | {"TMPDIR": str(tmp_path / "tmp")},
    ) as judged:  # fmt: skip
        time.sleep(after_s)
        judged.kill()
    assert {path.name for path in (tmp_path / "tmp").iterdir()} <= {"kernel-tui-locks"}


@pytest.mark.parametrize("spec", ["ROWS", "ROWS=many"])
def test_sizes_that_cannot_be_read(run: KernelTui, spec: str) -> None:
    refused = run("eval", "root.cpp", "--problem", "root.py", "--shapes", spec)
    assert refused.returncode == ExitCode.USAGE
    assert f"--shapes '{spec}' is not a size; write NAME=NUMBER" in refused.stderr
    assert refused.stderr.endswith(", or auto\n")


def test_auto_is_read_in_any_case(run: KernelTui) -> None:
    refused = run("eval", "root.cpp", "--problem", "root.py", "--shapes", "Auto", "--shapes", "ROW=100")
    assert "no size ROW; did you mean ROWS?" in refused.stderr, "--shapes Auto was accepted"


def test_sizes_that_the_problem_does_not_have_are_refused_before_anything_is_judged(run: KernelTui) -> None:
    refused = run("eval", "root.cpp", "--problem", "root.py", "--shapes", "ROW=100")
    assert refused.returncode == ExitCode.USAGE
    assert "no size ROW; did you mean ROWS?" in refused.stderr
