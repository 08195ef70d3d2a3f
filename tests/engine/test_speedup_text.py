"""Formatting of speedups."""

from __future__ import annotations

import pytest

from engine.session.records.speedup_text import marked_speedup, speedup


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0.5, "0.50x"), (3.125, "3.12x"), (99.99, "99.99x"), (104.2, "104x")]
)
def test_speedup(value: float | None, shown: str) -> None:
    assert speedup(value) == shown


@pytest.mark.parametrize(
    ("low", "high", "shown"), [(None, None, "2.00x"), (1.85, 2.2, "2.00x"), (1.7, 2.2, "~2.00x"), (1.7, None, "2.00x")]
)
def test_a_speedup_with_a_wide_interval_has_a_mark(low: float | None, high: float | None, shown: str) -> None:
    assert marked_speedup(2.0, low, high) == shown
