"""``benchmarks/judge_figures.py`` runs each step once, and says what failed and what is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.commandline import ROOT, environment
from tests.patience import PATIENCE_S


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "benchmarks" / "judge_figures.py"
    return subprocess.run(
        [sys.executable, script, "checkout", "results", *arguments],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip


def test_a_step_runs_once_and_its_failure_is_shown(tmp_path: Path) -> None:
    missing = run(tmp_path)
    assert missing.returncode == 2 and "checkout is not a clone of KernelBench" in missing.stderr
    (tmp_path / "checkout" / "KernelBench" / "level1").mkdir(parents=True)
    unknown = run(tmp_path, "--steps", "copies-4")
    assert unknown.returncode == 2 and "unknown steps: copies-4; choose from copies-3-even" in unknown.stderr
    only = ("--gpus", "none", "--steps", "copies-1")  # There are no problems, so the step fails.
    left = run(tmp_path, *only, "--minutes", "0")
    assert left.returncode == 3 and left.stdout.splitlines()[1].split()[:2] == ["copies-1", "left"]
    failed = run(tmp_path, *only)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    name, status, *_ = failed.stdout.splitlines()[1].split()
    assert name == "copies-1" and int(status) > 0
    log = tmp_path / "results" / "copies-1.log"
    size = log.stat().st_size
    again = run(tmp_path, *only)
    assert (again.returncode, again.stdout) == (1, failed.stdout) and log.stat().st_size == size > 0
