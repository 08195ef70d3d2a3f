"""JSON of commands has the manual's names; session files keep the names of earlier versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.session.records.events import EngineStopped, NodePruned
from engine.session.records.verdict import Baseline, CheckResult, Standing, Timing, Verdict
from tests.commandline import KernelTui
from tui.cli.shared.json_output import readable

BY_HAND = str(Path(__file__).parents[2] / "sessions" / "by-hand")
OLD_NAMES = {"form", "forms", "floor_ms", "floor_share", "floor_bytes", "survivors", "carried", "move"}


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys_of(inner)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (("show", BY_HAND), {"language", "sol_share"}),
        (("show", BY_HAND, "softmax"), {"sol_bytes", "selected"}),
        (("show", BY_HAND, "v42"), {"language", "selected", "sol_ms", "sol_share"}),
        (("kernels", "--sessions", BY_HAND), {"language", "transformation"}),
        (("problems", "builtin:quickstart/softmax"), {"languages"}),
    ],
    ids=["session", "problem", "kernel", "kernels", "problems"],
)
def test_json_has_the_manuals_names(kernel_tui: KernelTui, command: tuple[str, ...], names: set[str]) -> None:
    printed = set(keys_of(kernel_tui.json(*command)))
    assert names <= printed
    assert printed & OLD_NAMES == set()


def test_training_data_has_the_manuals_names(kernel_tui: KernelTui) -> None:
    lines = kernel_tui("export", BY_HAND, "--training", "-").stdout.splitlines()
    printed = {key for line in lines for key in keys_of(kernel_tui.decode(line))}
    assert {"language", "sol_share"} <= printed
    assert printed & OLD_NAMES == set()


@pytest.mark.parametrize(
    "value",
    [
        Verdict(status="correct", kernel=Timing(1.0, 0.9, 1.1, 9), checks=(CheckResult("fresh inputs", True),)),
        Baseline("eager"),
        Standing("v1", 1.0, 1.0, 1.0, 1.0, False),
        {"events": [NodePruned(node="v1"), EngineStopped(reason="stopped", message="")]},
        [None, 1, "text", (2.5, True)],
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_json_is_as_stored(value: Any) -> None:
    assert msgspec.json.decode(msgspec.json.encode(readable(value))) == msgspec.json.decode(msgspec.json.encode(value))
