"""The bars of the device pane: one time span and one scale for all figures, at any width."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.synthetic_session import CPU, GPU
from engine.devices.sample import DeviceSample
from engine.session.store import SessionPaths
from tui.monitor.panes.charts.readings import bars
from tui.monitor.panes.devices import device_lines
from tui.monitor.theme.palette import monochrome
from tui.view.model import Model
from tui.view.over_time.readings import SPAN_S, binned
from tui.view.source import Link, Reading, SessionSource

NOW = 1_780_000_000.0
FULL = DeviceSample(device=GPU.id, kind="cuda", utilization=100.0, memory_used=9 << 30, memory_total=141 << 30,
                    power_w=350.0, power_limit_w=700.0, temperature_c=50.0, clock_mhz=1980)  # fmt: skip


def lines_of(*samples: DeviceSample, width: int = 59, room: int = 11, seconds: int = 60) -> list[str]:
    """Return the pane's lines for devices whose figures have not changed for the last ``seconds``."""
    model = Model(SessionSource(SessionPaths(Path("none")), read_only=True, clock=lambda: NOW), opened=True)
    model.link = Link("live")
    model.state.devices = {
        sample.device: replace(GPU if sample.kind == "cuda" else CPU, id=sample.device) for sample in samples
    }
    model.readings.extend(Reading(NOW - seconds + 1 + second, samples) for second in range(seconds))
    return [one.text for one in device_lines(model, monochrome(), width, ascii_only=False, room=room)]


def test_each_figure_of_a_gpu_has_its_value_its_unit_and_bars_from_0_to_its_limit() -> None:
    heading, *rows, axis = lines_of(FULL, seconds=300)[:6]
    assert heading.startswith("GPU 0 H200  clock 1980 MHz")
    shown = [re.fullmatch(r"(\w+) +(\S.*\S)  +(\S)\3*", row) for row in rows]
    assert [one.groups() for one in shown if one is not None] == [
        ("load", "100%", "▇"),
        ("memory", "9.0G/141G", "▁"),
        ("power", "350/700 W", "▄"),
        ("temp", "50 °C", "▄"),
    ]
    assert re.fullmatch(r"bars: 0 to limit    5 min ago +now", axis)
    assert {len(row) for row in (*rows, axis)} == {59}


def test_time_without_a_reading_is_marked_and_is_no_load_of_0() -> None:
    load, memory = lines_of(replace(FULL, utilization=0.0, memory_used=0), seconds=60)[1:3]
    assert re.search(r"0%  ·{31}▁{8}$", load), load
    assert re.search(r"0B/141G  ·{31}▁{8}$", memory), memory


def test_a_finished_bin_never_changes() -> None:
    readings = [Reading(NOW - second, (replace(FULL, utilization=second % 97),)) for second in range(280)]
    before = binned(readings, GPU.id, "load", NOW, 40)
    later = binned(readings, GPU.id, "load", NOW + SPAN_S / 40, 40)
    assert later[:38] == before[1:39] and later[-1] is None


@pytest.mark.parametrize("count", [2, 8])
def test_several_gpus_have_one_line_each_and_throttling_is_told(count: int) -> None:
    gpus = [replace(FULL, device=f"GPU-{number}") for number in range(count)]
    gpus[1] = replace(gpus[1], throttle=("power cap",))
    head, *lines = lines_of(*gpus)
    assert re.fullmatch(r" +load  5 min ago +now +memory +power +temp", head)
    assert [line.split()[:3] for line in lines if "GPU" in line] == [["GPU", str(n), "H200"] for n in range(count)]
    assert "throttled: power cap" in lines[2]
    assert {len(line) for line in (head, *lines) if "·" in line or "now" in line} == {59}
    assert "clock" in lines_of(*gpus[:2], width=79, room=20)[0], "rows for each figure where there is room"


@pytest.mark.parametrize("width", range(40, 52))
def test_the_columns_of_a_narrow_table_stay_below_their_headings(width: int) -> None:
    lines = lines_of(*(replace(FULL, device=f"GPU-{number}") for number in range(8)), width=width)
    assert len({len(line) for line in lines if "load" in line or "GPU" in line}) == 1, lines


def test_a_cpu_shows_only_what_it_reports() -> None:
    cpu = DeviceSample(device="cpu", kind="cpu", utilization=50.0, memory_used=6 << 30, memory_total=24 << 30, load=1.7)
    heading, *rows, _ = lines_of(cpu, width=79)[:4]
    assert heading == "CPU Intel(R) Xeon(R) Processor  2 cores, load average 1.7, no NVIDIA GPU"
    assert lines_of(cpu)[0] == heading.removesuffix(", no NVIDIA GPU"), "whole words where space is short"
    assert [row.split()[0] for row in rows] == ["load", "memory"]


def test_tall_bars_stand_on_each_other() -> None:
    assert bars([1.0, 0.5, 0.0, None], 2) == ["▇   ", "██▁·"]
    assert bars([1.0, 0.0, None], 1, ascii_only=True) == ["#. "]
