"""``benchmarks/copies.py --first-kernels`` counts stored outcomes, without a judge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from tests.commandline import ROOT, environment
from tests.patience import PATIENCE_S


def test_first_kernels_are_counted_per_directory(tmp_path: Path) -> None:
    from benchmarks.copies import Outcome, digest_of

    stored = []
    for name, status, speedup, kernels in (
        ("level1/1_fast", "correct", 1.5, 2),
        ("level1/2_slow", "correct", 0.25, 2),
        ("level2/1_wrong", "wrong", None, 2),
        ("level2/1_wrong", "correct", 9.0, 0),  # a copy
    ):
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"# {name}\n")
        outcome = Outcome(problem=f"{name}.py", source=digest_of(file), tolerance="kernelbench", kernels=kernels,
                          status=status, speedup=speedup, reference_ms=1.0, kernel="first")  # fmt: skip
        stored.append(msgspec.json.encode(outcome) + b"\n")
    results = tmp_path / "results.jsonl"
    results.write_bytes(b"".join(stored))
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "copies.py", "level1", "level2", "--first-kernels", "2", "--results",
         results], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["level1", "2", "2", "1"] in lines and ["level2", "1", "0", "0"] in lines
    assert "correct, but with a speedup below 0.5" in done.stdout and "level1/2_slow.py: 0.25" in done.stdout
    assert results.read_bytes() == b"".join(stored), "nothing was judged"
