"""What all tests share: those that need a GPU are skipped where there is none; the command as a person runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.devices import discover
from tests.commandline import KernelTui


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(device.kind == "cuda" for device in discover()):
        return
    absent = pytest.mark.skip(reason="no NVIDIA GPU")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(absent)


@pytest.fixture
def kernel_tui(tmp_path: Path) -> Iterator[KernelTui]:
    """The command, run in ``tmp_path``. Engines that it leaves there are killed at the end."""
    command = KernelTui(tmp_path)
    yield command
    command.kill_engines()
