"""Tables in a terminal of 80 columns: whole names and figures, fewer columns."""

from __future__ import annotations

import io
import time
from itertools import takewhile
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from rich.console import Console

from engine.problem.catalog import ProblemFile, row_of
from engine.problem.inspection import inspect_file
from engine.proposers.coverage import Writer
from engine.session.library import read_library
from engine.session.state.session_state import fold
from engine.session.store import SessionPaths, SessionReader, SessionSummary
from tests.commandline import ROOT
from tui.cli.search.bench import bench
from tui.compare.sessions import compare_sessions
from tui.console import compare_table, lists, tables
from tui.console.clean_console import print_prose
from tui.view.results import results_of
from tui.view.session_figures import read_figures

SHIPPED = Path(__file__).resolve().parents[2] / "sessions"
BESTS = {"softmax": 1.5, "layernorm": 2.25, "conv2d_relu_maxpool": 11.75, "flash_attention_fp16": 0.9}


@pytest.fixture
def summary(tmp_path: Path) -> SessionSummary:
    return SessionSummary(
        name="quickstart-12",
        directory=tmp_path,
        created=time.time() - 3 * 86400,
        state="stopped",
        verdicts=128,
        best=BESTS,
        config_name="/home/me/config.toml",
        note="time budget used up (12 min). To continue: kernel-tui resume quickstart-12 --minutes N (more than 12.1)",
    )


class Printed:
    """What a function prints on a terminal of ``width`` cells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
        self._file = io.StringIO()
        out = Console(width=width, file=self._file)
        for module in (lists, tables, compare_table):
            monkeypatch.setattr(module, "console", lambda **_: out)

    @property
    def lines(self) -> list[str]:
        return self._file.getvalue().splitlines()


def test_sessions_are_paragraphs_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, summary: SessionSummary) -> None:
    for width in (80, 300):
        printed = Printed(monkeypatch, width)
        lists.print_sessions([summary])
        assert max(map(len, printed.lines)) <= width
        below = "  stopped, started 3d ago, 128 verdicts, config.toml"
        assert (below in printed.lines) == (width == 80)
        words = {word.rstrip(":,") for word in " ".join(printed.lines).split()}
        assert {*BESTS, "config.toml", "quickstart-12", "12.1)"} <= words


def test_examples_come_after_a_persons_own_sessions(monkeypatch: pytest.MonkeyPatch, summary: SessionSummary) -> None:
    example = replace(summary, name="by-hand", directory=SHIPPED / "by-hand")
    printed = Printed(monkeypatch, 80)
    lists.print_sessions([example, summary])
    assert [line for line in printed.lines if not line.startswith(" ")][:2] == ["quickstart-12", "by-hand"]
    assert "  example, started 3d ago, 128 verdicts, config.toml" in printed.lines


def test_a_session_of_many_problems_names_a_few(monkeypatch: pytest.MonkeyPatch, summary: SessionSummary) -> None:
    printed = Printed(monkeypatch, 80)
    lists.print_sessions([replace(summary, name="Z" * 100, best=BESTS | {"gelu": 2.0, "rmsnorm": 3.0})])
    text = " ".join(" ".join(printed.lines).split())
    assert text.count("Z") == 100
    assert "flash_attention_fp16 0.90x and 2 more" in text and "gelu" not in text


def test_a_footnote_explains_only_marks_that_the_list_shows(
    monkeypatch: pytest.MonkeyPatch, summary: SessionSummary
) -> None:
    hidden = replace(summary, best=BESTS | {"gelu": 2.0}, uncertain=("gelu",))
    for one, marked in ((hidden, False), (replace(hidden, uncertain=("softmax",)), True)):
        printed = Printed(monkeypatch, 80)
        lists.print_sessions([one])
        assert any(line.startswith("~: uncertain") for line in printed.lines) == marked


def test_long_names_of_problems_leave_the_space_to_the_compared_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("by-hand", "headline-h200", "kernelbench-level2")
    printed = Printed(monkeypatch, 80)
    compare_table.print_side_by_side(
        compare_sessions([read_figures(SessionPaths.at(ROOT / "sessions" / name)) for name in names])
    )
    lines = [line for line in printed.lines if line.strip()]
    head = [line.split() for line in takewhile(lambda line: "─" not in line, lines)]
    assert head == [["kernelbench-lev"], ["by-hand", "headline-h200", "el2"]], "only the longest name is folded"
    assert max(map(len, printed.lines)) <= 80
    assert any(line.split()[-2:] == ["540/540", "100%"] for line in printed.lines), "the last column is whole"


def test_problems_are_paragraphs_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    file = ProblemFile("layernorm", ROOT / "problems" / "quickstart" / "layernorm.py")
    row = row_of(file, inspect_file(file.path, file.id))
    writers = [Writer("playbook", ("cpp",), "")]
    for width in (80, 200):
        printed = Printed(monkeypatch, width)
        lists.print_problems([row], [writers])
        assert max(map(len, printed.lines)) <= width
        below = "  kernels: cuda cpp python triton; written by: playbook (cpp)"
        assert (below in printed.lines) == (width == 80)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_kernels_keep_their_names_and_figures(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    kernels = read_library([str(ROOT / "sessions" / "kernelbench-level1")]).kernels
    printed = Printed(monkeypatch, width)
    tables.print_kernels(kernels)
    assert max(map(len, printed.lines)) <= width
    for one in kernels:
        assert any(line.split()[:2] == [one.session, one.variant] for line in printed.lines)
    head = next(line for line in printed.lines if "speedup" in line)
    ideas = head.index("note or idea") if "note or idea" in head else width
    assert not any("\u2026" in line[:ideas] for line in printed.lines)


@pytest.mark.parametrize("width", [80, 200])
def test_the_totals_of_a_benchmark_name_the_columns_that_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    printed = Printed(monkeypatch, width)
    done = CliRunner().invoke(bench, ["--report", str(ROOT / "sessions" / "kernelbench-level1")])
    assert done.exit_code == 0, done.output
    head = next(line for line in printed.lines if line.strip().startswith("against"))
    hidden = [line for line in printed.lines if line.startswith("Columns that do not fit this terminal: ")]
    assert ("median" in head) == (width == 200) and "fast_1 " in head
    assert [("median" in line) for line in hidden] == [True] * (width == 80)


def test_results_drop_columns_and_keep_whole_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = SessionPaths.at(ROOT / "sessions" / "by-hand")
    with SessionReader(paths) as reader:
        state = fold(reader.read())
    heads = []
    for width in (80, 200):
        printed = Printed(monkeypatch, width)
        tables.print_results(results_of(state, paths.directory, 0.0))
        assert any("49.61x" in line for line in printed.lines)
        assert max(map(len, printed.lines[:5])) <= width and "\u2026" not in "".join(printed.lines)
        heads.append(next(line for line in printed.lines if "speedup" in line))
    assert "compile ms" not in heads[0] and "compile ms" in heads[1]


@pytest.mark.parametrize(("given", "widest"), [("", None), ("many", None), ("60", 60)])
def test_a_pipe_gets_whole_lines_unless_columns_sets_a_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str, widest: int | None
) -> None:
    monkeypatch.setenv("COLUMNS", given)
    words = " ".join(["threads 256 -> 1024"] * 30)
    table = tables.columns("kernel", "note")
    table.add_row("v1", words)
    tables.console().print(table)
    print_prose(tables.console(), words)
    lines = capsys.readouterr().out.splitlines()
    assert sum(words in line for line in lines) == (2 if widest is None else 0)
    assert widest is None or max(map(len, lines)) <= widest
