"""What all tests share: those that need a GPU are skipped where there is none; the command as a person runs it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.devices import discover
from tests.commandline import KernelTui
from tests.made_once import shared_folder


def pytest_configure(config: pytest.Config) -> None:
    """Without a GPU each worker has a device lock of its own, in a temporary directory of its own.

    What has to be timed alone stands in serial tests; the others would wait for each other's builds and judgements, a
    fifth of the time. A GPU stays one device.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or any(device.kind == "cuda" for device in discover()):
        return
    own = shared_folder() / worker
    own.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)
    config.add_cleanup(lambda: shutil.rmtree(own, ignore_errors=True))


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
