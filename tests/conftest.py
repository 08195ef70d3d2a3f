"""What all tests share: those that need a GPU are skipped where there is none."""

from __future__ import annotations

import pytest

from engine.devices import discover


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(device.kind == "cuda" for device in discover()):
        return
    absent = pytest.mark.skip(reason="no NVIDIA GPU")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(absent)
