"""The charts of the monitor, at the three sizes and without color or Unicode, and what they are drawn from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from engine.devices.fact import DeviceFact
from engine.session.records import events as ev
from engine.session.records.events import AnyEvent, Recorded
from engine.session.records.verdict import Verdict
from engine.session.store import SessionPaths, SessionReader
from tui.monitor.panes.charts.lines import chart_lines
from tui.monitor.panes.charts.plot import nice_ticks, time_ticks
from tui.monitor.theme.palette import monochrome
from tui.view.model import Model
from tui.view.over_time.history import NewBest, Point, Trajectory, fold_all
from tui.view.over_time.occupancy import BINS, MOST_WAITING
from tui.view.source import Link, SessionSource

BY_HAND = Path(__file__).parents[2] / "sessions" / "by-hand"
HEADINGS = ("best speedup over eager", "by verdicts", "devices")


async def test_charts_fill_the_right_third_of_a_large_terminal(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session, (200, 60)) as monitor:
        await monitor.until_shown("by verdicts")
        assert all(heading in monitor.text() for heading in HEADINGS)
        right = [line[135:] for line in monitor.text().splitlines()]
        assert any("★" in line for line in right), "each new best is marked"
        assert monitor.app.monitor_screen.charts.region.x >= 130
        problem = next(place for place, line in enumerate(right) if "over eager  softmax" in line)
        monitor.app.monitor_screen.tree_view.select("layernorm")
        await monitor.until(lambda: "layernorm" in monitor.text().splitlines()[problem][135:], "the selected problem")


@pytest.mark.keys("MonitorScreen", "8", "escape")
async def test_charts_are_a_tab_at_120x40_and_a_key_at_80x24(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        monitor.app.monitor_screen.detail.turn("Charts")
        await monitor.until_shown("best speedup over eager  softmax")
        assert "Charts" in monitor.text() and "by verdicts" in monitor.text()
    async with open_monitor(session, (80, 24)) as monitor:
        assert "by verdicts" not in monitor.text()
        await monitor.press("8")
        await monitor.until_shown("by verdicts")
        assert all(heading in monitor.text() for heading in HEADINGS), "all charts fit without scrolling"
        await monitor.press("escape")
        await monitor.until_shown("speedup change")


async def test_charts_follow_the_search(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths, (200, 60)) as monitor:
        await monitor.until_shown("by verdicts")
        before = sum(line[135:].count("★") for line in monitor.text().splitlines())
        engine.record(ev.VerdictGiven(variant="v57", verdict=Verdict(status="correct", speedup=9.0)))
        monitor.app.monitor_screen.tree_view.select("layernorm")
        await monitor.until_shown("over eager  layernorm 9.00x")
        assert before and "★" in "".join(line[135:] for line in monitor.text().splitlines())


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize(("width", "height"), [(30, 10), (58, 20), (66, 36), (100, 20), (250, 70)])
def test_charts_of_a_recorded_search_fit_their_pane(width: int, height: int, ascii_only: bool) -> None:
    model = recorded_model()
    for problem in model.state.problems:
        lines = chart_lines(model, problem, monochrome(), width, height, ascii_only=ascii_only)
        assert all(strip.cell_length <= width for strip in lines)
        text = "\n".join(strip.text for strip in lines)
        assert not ascii_only or text.isascii()
        bests = len(model.history.problems[problem].bests)
        assert bests == 0 or 0 < text.count("*" if ascii_only else "★") <= 2 * bests


def test_without_kernels_the_charts_say_so() -> None:
    with SessionReader(SessionPaths.at(BY_HAND)) as reader:
        first = list(reader.read())[:3]
    model = Model(SessionSource(SessionPaths.at(BY_HAND)))
    model.state, model.story, model.history = fold_all(first)
    text = "\n".join(line.text for line in chart_lines(model, None, monochrome(), 60, 30, ascii_only=False))
    assert text.count("no correct kernel yet") == 2 and "idle 100%" in text


def test_a_narrow_heading_keeps_the_figure_and_a_gap_to_the_next_chart() -> None:
    first = chart_lines(recorded_model(), "conv2d_relu_maxpool", monochrome(), 80, 20, ascii_only=False)[0].text
    assert re.search(r"best speedup  conv2d_relu\S*… 16\.68x  by verdicts", first)


async def test_the_narrowest_tabs_leave_room_for_the_kernels_id(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session, (110, 30)) as monitor:
        await monitor.until_shown("Charts ASM ")
        title = next(text for text in monitor.text().splitlines() if "Charts ASM" in text)
        assert re.search(r"ASM \S v\d+", title)


def recorded_model() -> Model:
    paths = SessionPaths.at(BY_HAND)
    model = Model(SessionSource(paths))
    with SessionReader(paths) as reader:
        model.state, model.story, model.history = fold_all(reader.read())
    model.opened, model.link = True, Link("ended")
    return model


def searched(*speedups: float) -> Model:
    """Return a model whose problem softmax has kernels with these speedups, one verdict every 5 s."""
    model = recorded_model()
    found = model.history.problems["softmax"] = Trajectory()
    for number, speedup in enumerate(speedups, 1):
        point = (number * 5.0, number, f"v{number}", speedup)
        found.judged.add(f"v{number}")
        found.timed.append(Point(*point))
        if not found.bests or speedup > found.bests[-1].speedup:
            found.bests.append(NewBest(*point, "verdict", None))
    return model


def speedup_charts(model: Model, width: int, height: int) -> list[list[str]]:
    """Return the lines of the two charts of speedups under each other, each with its heading."""
    lines = [strip.text for strip in chart_lines(model, "softmax", monochrome(), width, height, ascii_only=False)]
    ends = [place for place, text in enumerate(lines) if text.startswith(("by verdicts", "devices"))]
    return [lines[: ends[0]], lines[ends[0] : ends[1]]]


@pytest.mark.parametrize(("width", "height"), [(30, 8), (37, 12), (58, 20), (75, 40)])
@pytest.mark.parametrize(
    "speedups",
    [
        (1.02, 1.44),
        (1.1, 1.37, 1.42),
        (0.96, 1.0),
        (1.0,),
        (1.571, 1.572),
        (29.8, 49.6),
        (1.1, 4.9, 16.7),
        (118.0, 121.0),
    ],
)
def test_both_speedup_charts_have_labels_on_both_axes(speedups: tuple[float, ...], width: int, height: int) -> None:
    for chart in speedup_charts(searched(*speedups * 7), width, height):
        labels = re.findall(r"^ *(\S+x)┤", "\n".join(chart), re.MULTILINE)
        assert len(labels) >= 2 and len(set(labels)) == len(labels), "\n".join(chart)
        assert len(chart[-1].split()) >= 2, "\n".join(chart)


def test_the_labels_of_an_axis_have_equally_many_decimals() -> None:
    labels = re.findall(r"(\d\S*x)┤", "\n".join(speedup_charts(searched(0.9, 1.0, 1.1, 1.2), 60, 40)[0]))
    assert "1.0x" in labels and {len(label) for label in labels} == {4}, labels


@pytest.mark.parametrize("slow_first", [False, True])
def test_a_slow_kernel_stands_at_the_bottom_edge_and_keeps_the_scale_of_the_others(slow_first: bool) -> None:
    others = (1.02, 1.11, 1.24, 1.2, 1.38, 1.52, 1.49, 1.6)
    without, slow = searched(*others), searched(*((0.19, *others) if slow_first else (*others, 0.19)))
    usual, chart = speedup_charts(without, 60, 40)[1], speedup_charts(slow, 60, 40)[1]
    assert [text[:7] for text in chart] == [text[:7] for text in usual], "the same labels in the same rows"
    edge = next(place for place, text in enumerate(chart) if "└" in text) - 1
    assert not usual[edge][7:].strip() and chart[edge][7:].strip(), "\n".join(chart)
    rows = [text for text in chart[1:edge] if text[7:].strip()]
    assert len(rows) >= 5, "\n".join(chart)


def test_a_leap_of_the_best_speedup_is_drawn_on_a_logarithmic_axis() -> None:
    chart = "\n".join(speedup_charts(searched(1.0, 1.1, 1.2, 1.3, 20.0), 60, 40)[0])
    assert all(f" {label}┤" in chart for label in ("1x", "2x", "5x", "10x", "20x")), chart


@pytest.mark.parametrize("most", [2, 3, 5])
def test_an_axis_has_two_to_a_few_labels_whatever_it_spans(most: int) -> None:
    for seconds in (*range(10, 4000, 7), 86_000, 300_000, 2_000_000):
        assert 2 <= len(time_ticks(seconds, most)) <= most + 1
        assert 2 <= len(nice_ticks(0.0, seconds, most)) <= most + 1
        low = 1 + seconds / 1000
        assert 2 <= len(nice_ticks(low, low + 0.01 * (seconds % 89) + 0.001, most)) <= most + 1


def test_occupancy_divides_the_search_time_of_the_devices() -> None:
    started = ev.EngineStarted(pid=1, host="h", version="0", resumed=False, sandbox="",
                               devices=tuple(DeviceFact(id=f"GPU-{n}", kind="cuda", name="H200", arch="sm_90a",
                                                        memory_bytes=1, cores=1) for n in range(2)))  # fmt: skip
    stage = [
        (0.0, started),
        (10.0, ev.VariantStage(variant="v1", stage="building")),
        (20.0, ev.VariantStage(variant="v1", stage="waiting")),
        (30.0, ev.VariantStage(variant="v1", stage="checking")),
        (40.0, ev.VariantStage(variant="v1", stage="timing")),
        (40.0, ev.VariantStage(variant="v2", stage="timing")),
        (60.0, ev.VerdictGiven(variant="v1", verdict=Verdict(status="wrong"))),
        (80.0, ev.VerdictGiven(variant="v2", verdict=Verdict(status="wrong"))),
        (100.0, ev.RunoffFinished(problem="p", round=0, standings=(), seconds=10.0)),
    ]
    _, _, history = fold_all(Recorded(seq, at, event) for seq, (at, event) in enumerate(stage, 1))
    shares = history.occupancy.shares(120.0, 12)
    assert [round(one.building, 2) for one in shares] == [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert [round(one.checking, 2) for one in shares] == [0, 0, 0, 0.5, 0, 0, 0, 0, 0, 0, 0, 0]
    assert [round(one.timing, 2) for one in shares] == [0, 0, 0, 0, 1, 1, 0.5, 0.5, 0, 0.5, 0, 0], "the runoff counts"
    assert round(sum(one.idle for one in shares) / 12, 3) == round(1 - (1 + 0.5 + 3.5) / 12, 3)


def test_occupancy_counts_the_devices_of_a_cluster_while_they_are_there() -> None:
    def cpu(host: str) -> DeviceFact:
        return DeviceFact(id=f"{host}/cpu", kind="cpu", name="EPYC", arch="x86", memory_bytes=1, cores=8)

    stage: list[tuple[float, AnyEvent]] = [
        (0.0, ev.EngineStarted(pid=1, host="h", version="0", resumed=False, sandbox="", devices=(cpu("a"),))),
        (0.0, ev.VariantStage(variant="v1", stage="timing")),
        (10.0, ev.DeviceJoined(device=cpu("b"))),
        (20.0, ev.DeviceLeft(device="b/cpu", reason="lost")),
    ]
    _, _, history = fold_all(Recorded(seq, at, event) for seq, (at, event) in enumerate(stage, 1))
    assert [round(one.timing, 2) for one in history.occupancy.shares(30.0, 3)] == [1, 0.5, 1]


@pytest.mark.parametrize("most_waiting", [1, MOST_WAITING])
def test_a_pause_is_no_idle_time_whenever_the_bins_are_added_up(
    most_waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.view.over_time.occupancy.MOST_WAITING", most_waiting)
    stage: list[tuple[float, AnyEvent]] = [
        (0.0, ev.EngineStarted(pid=1, host="h", version="0", resumed=False, sandbox="", devices=())),
        (0.0, ev.VariantStage(variant="v1", stage="timing")),
        (10.0, ev.VerdictGiven(variant="v1", verdict=Verdict(status="wrong"))),
        (10.0, ev.SearchPaused()),
        (90.0, ev.SearchResumed()),
        (90.0, ev.VariantStage(variant="v2", stage="checking")),
        (100.0, ev.VerdictGiven(variant="v2", verdict=Verdict(status="wrong"))),
    ]
    _, _, history = fold_all(Recorded(seq, at, event) for seq, (at, event) in enumerate(stage, 1))
    shares = history.occupancy.shares(40.0, 4)
    assert [round(one.timing, 2) for one in shares] == [1, 0, 0, 0]
    assert [round(one.checking, 2) for one in shares] == [0, 1, 0, 0]


def test_occupancy_of_a_long_search_stays_small() -> None:
    events: list[tuple[float, AnyEvent]] = [
        (0.0, ev.EngineStarted(pid=1, host="h", version="0", resumed=False, sandbox="", devices=()))
    ]
    for number in range(20_000):
        events.append((number * 10.0, ev.VariantStage(variant=f"v{number}", stage="timing")))
        events.append((number * 10.0 + 5, ev.VerdictGiven(variant=f"v{number}", verdict=Verdict(status="wrong"))))
    _, _, history = fold_all(Recorded(seq, at, event) for seq, (at, event) in enumerate(events, 1))
    assert len(history.occupancy.bins) <= BINS + 1
    shares = history.occupancy.shares(199_995.0, 40)
    assert all(abs(one.timing - 0.5) < 0.01 for one in shares)


async def test_the_status_line_says_how_far_the_search_is_and_when_it_ends(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        engine.record(ev.BudgetChanged(minutes=10.0))
        await monitor.until_shown("/10:00")
        first = monitor.text().splitlines()[0]
        found = re.search(r"(\d+)% of time +ends ~(\d\d):(\d\d)", first)
        assert found is not None, first
        model = monitor.app.model
        assert int(found[1]) >= round(model.search_seconds() / 600 * 100) - 1
        engine.record(ev.SearchPaused())
        await monitor.until(lambda: "ends ~" not in monitor.text(), "no end during a pause")
        assert "% of time" in monitor.text()
