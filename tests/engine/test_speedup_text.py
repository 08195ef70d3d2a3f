"""Formatting of speedups."""

from __future__ import annotations

import pytest

from engine.session.records.speedup_text import speedup, with_times
from engine.session.records.verdict import Verdict
from engine.session.records.verdict_text import speedup_words


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"), (0.5, "0.50x"), (3.125, "3.12x"), (99.99, "99.99x"), (104.2, "104x"),
        (0.0996, "0.10x"), (0.0421, "0.042x"), (0.00246, "0.002x"), (0.0001, "<0.001x"),
    ],
)  # fmt: skip
def test_speedup(value: float | None, shown: str) -> None:
    assert speedup(value) == shown


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("number 2: 49851% slower than v21 by", "number 2: 500 times as slow as v21 by"),
        ("its own verdict was 150% slower (2x)", "its own verdict was 2.5 times as slow (2x)"),
        ("58% slower than v8 and 99% slower", "58% slower than v8 and 99% slower"),
    ],
)
def test_reasons_of_earlier_sessions_have_readable_figures(recorded: str, shown: str) -> None:
    assert with_times(recorded) == shown


@pytest.mark.parametrize(
    ("low", "high", "shown"), [(None, None, "2.00x"), (1.85, 2.2, "2.00x"), (1.7, 2.2, "~2.00x"), (1.7, None, "2.00x")]
)
def test_a_speedup_with_a_wide_interval_has_a_mark(low: float | None, high: float | None, shown: str) -> None:
    verdict = Verdict(status="correct", speedup=2.0, speedup_low=low, speedup_high=high)
    assert speedup_words(verdict) == shown


@pytest.mark.parametrize(("others", "shown"), [(0.1, "2.00x"), (0.4, "~2.00x")])
def test_a_speedup_measured_beside_other_programs_has_a_mark(others: float, shown: str) -> None:
    verdict = Verdict(status="correct", speedup=2.0, speedup_low=1.99, speedup_high=2.01, others=others)
    assert speedup_words(verdict) == shown
