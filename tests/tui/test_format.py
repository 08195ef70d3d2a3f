"""Formatting of figures."""

from __future__ import annotations

import pytest

from engine.session.records.verdict import Verdict
from tui.text import format as fmt
from tui.text.certainty import remarks_of


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.01234, "0.0123"),
        (0.8431, "0.843"),
        (12.345, "12.35"),
        (123.45, "123.5"),
        (0.09997, "0.100"),
        (9.9997, "10.00"),
        (99.996, "100.0"),
    ],
)
def test_milliseconds(value: float | None, shown: str) -> None:
    assert fmt.milliseconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (0.042, "+4.2%"), (-0.31, "-31%"), (-0.0997, "-10%"), (0.0994, "+9.9%"), (11.0, "x12")],
)
def test_change(value: float | None, shown: str) -> None:
    assert fmt.change(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-1, "0s"), (59, "59s"), (61, "1m"), (7200, "2h"), (86400, "24h"), (86400 * 3, "3d")]
)
def test_age(seconds: float, shown: str) -> None:
    assert fmt.age(seconds) == shown


def test_clock_and_size() -> None:
    assert fmt.clock(187) == "3:07" and fmt.clock(3787) == "1:03:07"
    assert fmt.size(512) == "512B" and fmt.size(1536) == "1.5K" and fmt.size(141 << 30) == "141G"


def test_duration() -> None:
    said = [fmt.duration(seconds) for seconds in (0, 40, 200, 7 * 3600 + 12 * 60 + 5, 86400, 90000)]
    assert said == ["0 s", "40 s", "3 m 20 s", "7 h 12 m", "1 d", "1 d 1 h"]


def test_sparkline() -> None:
    assert fmt.sparkline([0, 1, 2, 4], 10) == " ▂▄█"
    assert fmt.sparkline([1, 2, 4], 2) == "▄█"
    assert fmt.sparkline([50], 5, top=100) == "▄"
    assert fmt.sparkline([0, 0], 5) == "  "
    assert fmt.sparkline([1.0, 2.0], 5, bottom=0.5, ascii_only=True) == "-@"


def test_text_is_cut_to_cells() -> None:
    assert fmt.fit("abcdef", 4) == "abc…" and fmt.fit("abc", 4) == "abc"
    assert fmt.pad("漢字漢字", 5) == "漢字…"
    assert fmt.pad("ab", 4) == "ab  "


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("tune", "tune"),
        ("share_rows", "share rows"),
        ("vectorise+share_rows", "vectorize + share rows"),
        ("first:fused_loop", "first: fused loop"),
        ("", ""),
    ],
)
def test_transformation_label(name: str, shown: str) -> None:
    assert fmt.transformation_label(name) == shown


def test_geometric_mean() -> None:
    assert fmt.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert fmt.geometric_mean([]) is None


@pytest.mark.parametrize("width", [6, 8, 10, 40])
def test_cut_names_stay_different(width: int) -> None:
    names = ["conv2d", "conv2d_relu_maxpool", "layernorm", "layernorm_shifted", "matmul_fp16", "matmul_fp32", "softmax"]
    shown = fmt.fit_apart(names, width)
    assert len(set(shown)) == len(names) and all(len(one) <= width for one in shown)
    assert {one for one in shown if "…" not in one} == {one for one in names if len(one) <= width}


def test_a_remark_of_every_timing_process_is_shown_once() -> None:
    flags = ("other programs used 36% of the CPU", "calls aten::conv2d", "other programs used 4.5% of the CPU")
    assert remarks_of(Verdict(status="correct", flags=(*flags, "calls aten::conv3d"))) == [
        flags[0],
        flags[1],
        "calls aten::conv3d",
    ]
