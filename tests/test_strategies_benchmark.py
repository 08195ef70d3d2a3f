"""``benchmarks/strategies.py compare`` runs on the stored tables of CPU kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from engine.search.strategies import STRATEGIES
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "benchmarks" / "tables" / "cpu"


def test_every_strategy_is_compared_on_every_stored_table() -> None:
    command = [sys.executable, ROOT / "benchmarks" / "strategies.py", "compare", TABLES]
    answer = subprocess.run(
        [*command, "--verdicts", "12", "--seeds", "2"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert answer.returncode == 0, answer.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in answer.stdout.splitlines()[2:]]
    problems = {path.name.removesuffix(".json.gz") for path in TABLES.glob("*.json.gz")}
    assert len(problems) == 4
    assert {(row[0], row[1]) for row in rows if len(row) > 2} >= {
        (one, name) for one in problems for name in STRATEGIES
    }
    for row in rows:
        if row[0] in problems:
            # The best of a search is a kernel of the table, so its ratio to the table's best is a number from 1 on. A
            # template that was renamed or changed would leave most kernels unknown.
            assert float(row[2].split()[0]) >= 1.0
            assert int(row[6].rstrip("%")) >= 50, row
