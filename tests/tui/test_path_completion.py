"""The tab key completes the path of a kernel to seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from engine.session.records import requests as requests
from tests.tui.conftest import monitor_of
from tui.monitor.terminal.path_completion import Completion, complete, is_file

SUFFIXES = (".cu", ".cpp")


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """Create a directory with kernels, a directory, a hidden directory, and a file that is not a kernel."""
    for name in ("row_max.cu", "row_sum.cu", "notes.txt", ".hidden.cu", "conv/wide.cu"):
        (tmp_path / "k" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "k" / name).write_text("// a kernel\n")
    return tmp_path / "k"


def test_a_path_is_completed_as_far_as_it_is_certain(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete(f"{kernels}/r", SUFFIXES) == Completion(f"{kernels}/row_", ("row_max.cu", "row_sum.cu"))
    assert complete(f"{kernels}/row_m", SUFFIXES) == Completion(f"{kernels}/row_max.cu")
    assert complete(f"{kernels}/co", SUFFIXES) == Completion(f"{kernels}/conv/")
    assert complete(f"{kernels}/n", SUFFIXES) == Completion(f"{kernels}/n"), "no kernel"
    assert complete(f"{kernels}/.h", SUFFIXES) == Completion(f"{kernels}/.hidden.cu")
    assert complete(f"{kernels}/absent/x", SUFFIXES) == Completion(f"{kernels}/absent/x")
    for odd in ("~no_such_user/x", f"{'x' * 5000}/y"):
        assert complete(odd, SUFFIXES) == Completion(odd) and not is_file(odd)
    assert is_file(f"{kernels}/notes.txt") and not is_file(str(kernels))
    monkeypatch.chdir(kernels)
    assert complete("conv/w", SUFFIXES) == Completion("conv/wide.cu")
    assert complete("", SUFFIXES).candidates == ("conv/", "row_max.cu", "row_sum.cu")
    monkeypatch.setenv("HOME", str(kernels))
    assert complete("~/co", SUFFIXES) == Completion("~/conv/")


@pytest.mark.keys("PathInput", "tab")
async def test_tab_completes_the_path_of_a_seed(engine: Any, kernels: Path) -> None:
    async with monitor_of(engine.paths) as monitor:
        await monitor.press("B", "a")
        field = monitor.app.screen.query_one("#path", Input)
        field.value = f"{kernels}/r"
        field.cursor_position = len(field.value)
        await monitor.press("tab")
        assert field.value == f"{kernels}/row_"
        await monitor.until_shown("row_max.cu, row_sum.cu")
        await monitor.press("s", "tab", "enter")
        await monitor.until(lambda: bool(engine.commands()), "the request")
        request = engine.commands()[-1]
        assert isinstance(request, requests.SeedKernel) and request.source == "// a kernel\n"
        assert "row_sum.cu" in request.text


async def test_tab_leaves_a_path_that_is_complete(engine: Any, kernels: Path) -> None:
    async with monitor_of(engine.paths) as monitor:
        await monitor.press("B", "a")
        monitor.app.screen.query_one("#path", Input).value = f"{kernels}/row_max.cu"
        await monitor.press("tab")
        assert monitor.app.screen.focused is monitor.app.screen.query_one("#pasted")


async def test_tab_says_that_nothing_matches(engine: Any, kernels: Path) -> None:
    async with monitor_of(engine.paths) as monitor:
        await monitor.press("B", "a")
        field = monitor.app.screen.query_one("#path", Input)
        field.value = f"{kernels}/n"
        await monitor.press("tab")
        await monitor.until_shown("No directory or kernel file (")
        assert monitor.app.screen.focused is field
        await monitor.press("o")
        assert "No directory or kernel file (" not in monitor.text()
