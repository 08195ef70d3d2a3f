"""The README stays short, and its figures match the results page."""

from __future__ import annotations

import re
from pathlib import Path

from engine.session.state.session_state import fold
from engine.session.store import SessionPaths, SessionReader
from tui.text.format import milliseconds
from tui.view.results import Results, results_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
RESULTS_PAGE = (ROOT / "docs" / "reference" / "results.md").read_text()


def example_session() -> Results:
    paths = SessionPaths(ROOT / "sessions" / "by-hand")
    with SessionReader(paths) as reader:
        return results_of(fold(reader.read()), paths.directory, 0.0)


def test_a_newcomer_reads_it_in_a_few_minutes() -> None:
    assert len(README.splitlines()) <= 150


def test_the_figures_of_the_example_session_are_those_that_show_prints() -> None:
    results = example_session()
    table = RESULTS_PAGE.split("best of rounds 0, 1, 2, ms |")[1]
    assert len(results.problems) == 3
    for row in results.problems:
        line = re.search(rf"(?m)^\| {row.problem} \| (.*) \|$", table)
        assert line is not None
        eager, compiled, _, speedup, over_compile, sol_share = line[1].split(" | ")
        assert (eager, compiled) == (milliseconds(row.eager_ms), milliseconds(row.compile_ms))
        assert row.speedup is not None and float(speedup.split()[0]) == float(f"{row.speedup:.3g}")
        assert row.over_compile is not None and float(over_compile) == float(f"{row.over_compile:.3g}")
        assert row.sol_share is not None and sol_share == f"{row.sol_share * 100:.0f}%"


def _figure(cell: str) -> str:
    """Return a cell's figure with three digits, or "-" without one."""
    return "-" if cell == "-" else f"{float(cell.split()[0]):.3g}"


def test_the_table_of_readme_is_that_of_the_results_page() -> None:
    rows = re.findall(r"(?m)^\| (\w+) \| ([\d.]+) \| (\S+) \| ([\d.]+) \| ([\d.]+)( \*)? \| ([\d.]+) \|", README)
    assert len(rows) == 8
    for problem, eager_ms, compile_ms, best_ms, over_compile, starred, over_eager in rows:
        line = re.search(rf"(?m)^\| {problem} \| (.*) \|$", RESULTS_PAGE)
        assert line is not None
        eager, compiled, _, best, over, faster, _ = map(_figure, line[1].replace("%", "").split(" | "))
        assert (float(eager_ms), float(best_ms), float(over_eager)) == (float(eager), float(best), float(faster))
        if starred:
            assert (compile_ms, compiled, over) == ("-", "-", "-")
            assert over_compile in re.findall(r"[\d.]+", RESULTS_PAGE.split("With seed 0, the best kernels")[1][:200])
        else:
            assert (float(compile_ms), float(over_compile)) == (float(compiled), float(over))


def test_the_results_page_shows_the_recorded_headline_search() -> None:
    paths = SessionPaths(ROOT / "sessions" / "headline-h200")
    with SessionReader(paths) as reader:
        results = results_of(fold(reader.read()), paths.directory, 0.0)
    assert len(results.problems) == 8
    for row in results.problems:
        line = re.search(rf"(?m)^\| {row.problem} \| (.*) \|$", RESULTS_PAGE)
        assert line is not None
        eager, _, _, best, _, speedup, sol_share = line[1].split(" | ")
        assert (float(eager), float(best)) == (float(milliseconds(row.eager_ms)), float(milliseconds(row.best_ms)))
        assert row.speedup is not None and _figure(speedup) == f"{row.speedup:.3g}"
        assert row.sol_share is not None and sol_share == f"{row.sol_share * 100:.0f}%"
