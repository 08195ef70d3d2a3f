"""Fixtures for all tests: the command as a user runs it, and skips for tests that need a GPU or a quiet machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.devices.hardware import discover
from tests.commandline import KernelTui
from tests.made_once import shared_folder
from tests.quiet import REASON, quiet_second


def pytest_configure(config: pytest.Config) -> None:
    """Give each worker its own device lock in a temporary directory, unless there is a GPU.

    Otherwise tests would spend a fifth of their time waiting for the builds and verdicts of others. Tests that need
    exclusive timing are marked serial. A worker of pytest-xdist has ``COLUMNS``, which would wrap the commands' output.
    """
    os.environ.pop("COLUMNS", None)
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
def quiet_machine() -> None:
    """Skip the test unless one of five seconds is quiet, for assertions that need the whole processor."""
    load = quiet_second(5)
    if not load.is_quiet:
        pytest.skip(f"{REASON}: {load}")


@pytest.fixture
def kernel_tui(tmp_path: Path) -> Iterator[KernelTui]:
    """Return the command, which runs in ``tmp_path``. Its engines are killed after the test."""
    command = KernelTui(tmp_path)
    yield command
    command.kill_engines()
