"""Tolerances: the limits of each name, the meaning of older names, and the wording in tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.schema import load_config, parse_config, preset_text
from engine.config.tolerance import (
    canonical,
    largest_error,
    shared_caption,
    short_caption,
    tolerance_caption,
    tolerance_in,
    tolerance_of,
)

BY_HAND = Path(__file__).parents[2] / "sessions" / "by-hand" / "config.toml"
CONFIG = 'problems = ["builtin:quickstart/softmax"]\n'


@pytest.mark.parametrize(
    ("tolerance", "fp64", "fp32", "fp16", "bf16"),
    [
        ("kernelbench", 1e-4, 1e-4, 1e-2, 1e-2),
        ("crfm", 1e-2, 1e-2, 1e-2, 1e-2),
        (0.001, 1e-3, 1e-3, 1e-3, 1e-3),
    ],
)
def test_what_each_tolerance_allows(tolerance: str | float, fp64: float, fp32: float, fp16: float, bf16: float) -> None:
    dtypes = ("float64", "float32", "float16", "bfloat16")
    assert [largest_error(tolerance, dtype) for dtype in dtypes] == [fp64, fp32, fp16, bf16]


@pytest.mark.parametrize(
    ("tolerance", "caption", "short"),
    [
        ("kernelbench", "tolerance kernelbench (1e-4 in fp32)", "tol. kernelbench"),
        ("crfm", "tolerance crfm (1e-2)", "tol. crfm"),
        (0.001, "tolerance 0.001", "tol. 0.001"),
        (None, "tolerance unknown", "tol. unknown"),
    ],
)
def test_captions(tolerance: str | float | None, caption: str, short: str) -> None:
    assert (tolerance_caption(tolerance), short_caption(tolerance)) == (caption, short)


def test_a_table_of_several_searches_has_one_caption_only_where_they_agree() -> None:
    assert shared_caption(["crfm", "crfm"]) == "tolerance crfm (1e-2)"
    assert shared_caption(["crfm", "kernelbench"]) is None
    assert shared_caption([]) is None


@pytest.mark.parametrize("value", ["Published", "", 0, 1, 1.5, -0.1, True, None, ["crfm"], {"crfm": 1}])
def test_what_is_no_tolerance(value: object) -> None:
    assert canonical(value) is None


def test_the_presets_that_reproduce_crfm_keep_its_tolerance_and_the_default_is_kernelbenchs() -> None:
    tolerances = {
        name: parse_config(preset_text(name), "config.toml").evaluation.tolerance
        for name in ("quickstart", "headline", "published")
    }
    assert tolerances == {"quickstart": "kernelbench", "headline": "crfm", "published": "crfm"}
    assert parse_config(CONFIG, "config.toml").evaluation.tolerance == "kernelbench"


def test_a_config_with_the_older_name_means_crfm_and_is_frozen_as_that() -> None:
    config = parse_config(CONFIG + '[evaluation]\ntolerance = "published"\n', "config.toml")
    assert config.evaluation.tolerance == "crfm"
    assert 'tolerance = "crfm"' in config.frozen_toml()
    assert tolerance_in(config.frozen_toml()) == "crfm"


def test_a_session_of_an_older_version_can_be_read_and_resumed_under_its_tolerance() -> None:
    assert 'tolerance = "published"' in BY_HAND.read_text()
    assert tolerance_in(BY_HAND.read_text()) == "crfm"
    assert load_config(BY_HAND).evaluation.tolerance == "crfm"


@pytest.mark.parametrize(
    ("text", "tolerance"),
    [
        ("", "kernelbench"),
        ("[evaluation]\ntolerance = 0.001\n", 0.001),
        ("[evaluation]\ntolerance = 7\n", None),
        ("evaluation = 3\n", None),
        ("[evaluation\n", None),
    ],
)
def test_the_tolerance_of_a_stored_config(text: str, tolerance: str | float | None) -> None:
    assert tolerance_in(text) == tolerance
    assert tolerance_of("digest", {"digest": text}.__getitem__) == tolerance


def test_a_session_without_a_config_has_an_unknown_tolerance() -> None:
    assert tolerance_of("", {}.__getitem__) is None
