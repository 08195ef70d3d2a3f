"""``benchmarks/headline.py`` stores a session's results and prints the table, without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from benchmarks.headline import COLUMNS, sizes, store, table, with_key, write_json
from benchmarks.headline import Clock as TimeLeft
from engine.config.schema import PRESETS, parse_config, preset_text

ROOT = Path(__file__).resolve().parents[1]
EAGER_MS, COMPILE_MS = 1.05, 0.50
"""Baselines that this test makes up: torch.compile is outside KernelBench's tolerance."""


@pytest.mark.parametrize("preset", PRESETS)
def test_changed_keys_of_a_preset(preset: str) -> None:
    text = preset_text(preset)  # type: ignore[arg-type]
    for key, value, section in (
        ("seed", 7, ""),
        ("problems", ["builtin:quickstart/gelu"], ""),
        ("minutes", 0.5, "budget"),
        ("tolerance", "kernelbench", "evaluation"),
        ("device", "cpu", "evaluation"),
    ):
        text = with_key(text, key, value, section)
    config = parse_config(text, ROOT)
    assert (config.seed, config.budget.minutes, config.evaluation.tolerance) == (7, 0.5, "kernelbench")
    assert list(config.problems) == ["builtin:quickstart/gelu"]
    assert config.evaluation.device == "cpu"


def test_the_table_of_a_stored_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "crfm-0"
    shutil.copytree(ROOT / "sessions" / "by-hand", run / "sessions" / "by-hand")
    store(run)
    sizes(tmp_path, TimeLeft(0))
    for column, ms in zip(COLUMNS, (EAGER_MS, None, COMPILE_MS, None), strict=True):
        if ms is not None:
            meets = {"crfm": column == "eager", "kernelbench": column == "eager"}
            write_json(tmp_path / "columns" / f"softmax.{column}.json", {"timing": {"median_ms": ms}, "meets": meets})
    table(tmp_path)

    printed = capsys.readouterr().out
    softmax = next(line for line in printed.splitlines() if line.startswith("| softmax"))
    cells = [cell.strip() for cell in softmax.split("|")[1:-1]]
    assert cells[1:8] == ["1.05", "-", "0.5*", "-", "0.539", "0.54 (met)", "1.95"]
    assert "| crfm-0 | softmax | crashed | out of bounds | wrong | 0 of 3 | 0 of 3 |" in printed
    assert (run / "best" / "softmax.cu").read_text() == (ROOT / "sessions/by-hand/best/softmax.cu").read_text()
    assert set(msgspec.json.decode((run / "show.json").read_bytes())["minutes_to_near"]) == {
        "softmax",
        "layernorm",
        "conv2d_relu_maxpool",
    }
