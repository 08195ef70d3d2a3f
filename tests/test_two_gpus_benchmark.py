"""``benchmarks/two_gpus.py`` compares stored runs, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.headline import write_json
from benchmarks.two_gpus import Judged, Run, print_table


def run(gpus: int, seconds: float, *, slower: float = 1.0, last: str = "correct") -> Run:
    """Ten kernels, alternately on each GPU. ``slower``: factor of all kernel times. ``last``: the last one's status."""
    results = {
        f"softmax-{number}": Judged(
            status=last if number == 9 else "correct",
            reason="the outputs differ" if number == 9 and last != "correct" else "",
            ms=slower * (1.0 + number),
            speedup=1.0,
            device=f"gpu{number % gpus}/GPU-{number % gpus}",
            build_s=0.0,
            judged_s=gpus * seconds / 10,
        )
        for number in range(10)
    }
    return Run([f"GPU-{number}" for number in range(gpus)], 3.0, seconds, 0.1, results)


def test_the_table_compares_rates_statuses_and_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "local1.json", run(1, 20.0))
    write_json(tmp_path / "workers1.json", run(1, 20.0, slower=1.01))
    write_json(tmp_path / "workers2.json", run(2, 10.4, slower=1.03, last="wrong"))
    (tmp_path / "local2.failed").write_text("did not end within 75 s")
    print_table(tmp_path)

    rows = {line.split(" | ")[0].removeprefix("| "): line for line in capsys.readouterr().out.splitlines()}
    assert "| 1.92 | 1.85 (met) |" in rows["two workers, verdicts per minute"]
    assert "| 30.0 (10 in 20.0 s, busy 100%," in rows["two workers, verdicts per minute"]
    assert "10 of 10 | | all (met)" in rows["workers1: statuses as in local1 (10 correct)"]
    assert "9 of 10 | | all (not met)" in rows["workers2: statuses as in local1 (10 correct)"]
    assert "median 1.0100" in rows["workers1: kernel time / time in local1"]
    assert "1 +- 0.02 (not met)" in rows["workers2: kernel time / time in local1"]
    assert "median 1.0300" in rows["workers2: the same, only gpu1 (5 kernels)"]
    assert "| correct | wrong: the outputs differ |" in rows["workers2: softmax-9"]
    assert "local2 did not end within 75 s; see local2.log" in rows
