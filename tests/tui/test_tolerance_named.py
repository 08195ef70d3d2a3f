"""Every table or pane with a speedup names the tolerance of its verdict."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.synthetic_session import write_session
from engine.session.records.other_sizes import AtSizes
from engine.session.records.verdict import Standing, Timing, Verdict
from engine.session.store import SessionPaths
from tests.commandline import KernelTui
from tests.tui.conftest import SMALL, monitor_of
from tests.tui.test_compare import WRONG, right, write
from tui.console import tables
from tui.monitor.panes.detail.evidence import evidence_lines
from tui.monitor.panes.detail.story import why_lines
from tui.monitor.snapshot import render_once
from tui.monitor.theme.palette import monochrome
from tui.view.model import Model
from tui.view.source import SessionSource

BY_HAND = Path(__file__).parents[2] / "sessions" / "by-hand"
LONG, SHORT = "tolerance crfm (1e-2)", "tol. crfm"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("show", BY_HAND), (LONG, LONG)),
        (("show", BY_HAND, "--full"), (LONG, LONG)),
        (("show", BY_HAND, "softmax"), (LONG, LONG)),
        (("show", BY_HAND, "softmax", "--full"), (LONG,)),
        (("show", BY_HAND, "i1"), (LONG,)),
        (("show", BY_HAND, "v42"), (SHORT,)),
        (("show", BY_HAND, "v42", "--full"), ("crfm (1e-2)", LONG)),
        (("sessions", BY_HAND), (LONG,)),
        (("sessions", "--compare", BY_HAND, BY_HAND), ("crfm (1e-2)", "crfm (1e-2)")),
        (("kernels", "softmax", "--sessions", BY_HAND), (LONG,)),
        (("export", BY_HAND, "v42"), (SHORT,)),
        (("export", BY_HAND, "--report", "-"), (LONG, SHORT, SHORT, SHORT, SHORT)),
    ],
    ids=lambda words: " ".join(Path(one).name for one in words),
)
def test_what_the_command_line_says_of_an_older_session_names_its_tolerance(
    kernel_tui: KernelTui, arguments: tuple[str | Path, ...], named: tuple[str, ...]
) -> None:
    text = kernel_tui(*map(str, arguments)).stdout
    for words in set(named):
        assert text.count(words) >= named.count(words), text


def test_what_a_program_reads_names_the_tolerance(kernel_tui: KernelTui) -> None:
    assert kernel_tui.json("show", str(BY_HAND))["tolerance"] == "crfm"
    assert kernel_tui.json("show", str(BY_HAND), "v42")["tolerance"] == "crfm"
    assert [one["tolerance"] for one in kernel_tui.json("sessions", str(BY_HAND))] == ["crfm"]
    assert {one["tolerance"] for one in kernel_tui.json("kernels", "--sessions", str(BY_HAND))} == {"crfm"}
    training = kernel_tui("export", str(BY_HAND), "--training", "-").stdout.splitlines()
    assert {json.loads(one)["tolerance"] for one in training} == {"crfm"}


def test_a_table_of_sessions_that_differ_names_each_ones(kernel_tui: KernelTui, tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    write(root, "strict", [right(2.0)])
    write(root, "old", [right(3.0)], tolerance="published")
    listed = kernel_tui("sessions").stdout
    assert "softmax 2.00x (tol. kernelbench)" in listed and "softmax 3.00x (tol. crfm)" in listed
    rows = [line.split() for line in kernel_tui("kernels").stdout.splitlines() if " v1 " in line]
    assert {(row[0], name) for row in rows for name in ("kernelbench", "crfm") if name in row} == {
        ("strict", "kernelbench"),
        ("old", "crfm"),
    }


@pytest.mark.parametrize(
    ("size", "named"),
    [
        ((80, 24), ["1 Tree  tol. crfm "]),
        ((120, 40), ["1 Tree  tol. crfm ", "2 Problems  tolerance crfm (1e-2)"]),
        ((200, 60), ["1 Tree  tol. crfm ", "2 Problems  tolerance crfm (1e-2)", "speedup over eager, tol. crfm"]),
    ],
    ids=["80x24", "120x40", "200x60"],
)
def test_the_monitors_panes_name_the_tolerance(tmp_path: Path, size: tuple[int, int], named: list[str]) -> None:
    paths = write(tmp_path, "old", [right(2.0), right(3.0), WRONG], tolerance="published")
    text = render_once(paths, *size)
    assert [words for words in named if words not in text] == [], text


async def test_the_tree_keeps_its_filter_beside_the_tolerance(tmp_path: Path) -> None:
    async with monitor_of(write_session(tmp_path, "small", SMALL), (80, 24)) as monitor:
        await monitor.until_shown("1 Tree  tol. kernelbench")
        monitor.app.monitor_screen.set_filter("threads=256 vec=4 unroll=2")
        await monitor.until_shown("1 Tree /threads=256 vec=4 unroll=2 (")
        assert "tol. kernelbench" in monitor.text().splitlines()[2]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=["80x24", "120x40", "200x60"])
async def test_the_tree_names_its_tolerance_in_every_arrangement(tmp_path: Path, size: tuple[int, int]) -> None:
    async with monitor_of(write_session(tmp_path, "small", SMALL), size) as monitor:
        screen = monitor.app.monitor_screen

        def title() -> str:
            return next(text for text in monitor.text().splitlines() if text.startswith((" 1 Tree", " 1 Lineage")))

        for keys, words in (
            ("m", "1 marked"),
            ("o", "by speedup"),
            ("O", "by speedup reversed"),
            ("t", "Lineage by speedup reversed"),
        ):
            await monitor.press(keys)
            await monitor.until(lambda words=words: words in title(), words)
            assert "tol. kernelbench" in title(), title()
        for text in ("softmax", "correct " * 20):
            screen.set_filter(text)
            await monitor.until(lambda text=text: f"/{text[:7]}" in title(), text)
            assert "tol. kernelbench" in title() and re.search(r"\(\d+\)", title()), title()


def test_the_tabs_of_a_kernel_name_the_tolerance(tmp_path: Path) -> None:
    model, palette = opened(write(tmp_path, "old", [right(2.0), WRONG], tolerance="published")), monochrome()
    for name in ("v1", "v2"):
        evidence = [one.text for one in evidence_lines(model, model.state.variants[name], palette, 100)]
        assert "tolerance    crfm (1e-2)" in [one.strip() for one in evidence]
    why = "\n".join(one.text for one in why_lines(model, model.state.variants["v1"], palette, 100))
    assert "2.000 ms, tol. crfm" in why and "lineage, newest first; speedups: tol. crfm" in why


def test_what_judges_one_kernel_or_two_names_the_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = Verdict(status="correct", speedup=2.0, kernel=Timing(1.0, 1.0, 1.0, 9))
    tables.print_verdict("a.cpp", verdict, 0.001)
    assert "tolerance 0.001" in " ".join(capsys.readouterr().out.split())
    tables.print_at_sizes([AtSizes("odd", {"ROWS": 8}, "x (8, 8)", "correct", speedup=1.5, kernel_ms=1.0)], "crfm")
    assert LONG in capsys.readouterr().out
    standings = (Standing("b.cpp", 1.0, 1.0, 1.0, 1.0, False), Standing("a.cpp", 1.5, 1.5, 1.4, 1.6, False))
    tables.print_comparison({"a.cpp": verdict, "b.cpp": verdict}, standings, "crfm")
    assert LONG in capsys.readouterr().out


def opened(paths: SessionPaths) -> Model:
    source = SessionSource(paths, read_only=True)
    update = source.open()
    source.close()
    model = Model(source)
    model.take(update)
    return model
