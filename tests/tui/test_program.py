"""Hints show a command that the user's shell finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tui.text.program import program


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the command of a virtual environment that is not active."""
    script = tmp_path / ".venv" / "bin" / "kernel-tui"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(script), "config.toml"])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return script


def test_the_file_that_was_started_where_the_shell_does_not_find_the_name(
    started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert program() == ".venv/bin/kernel-tui"
    monkeypatch.chdir("/")
    assert program() == str(started).removeprefix("/")
    (tmp_path / "else where").mkdir()
    monkeypatch.chdir(tmp_path / "else where")
    assert program() == str(started)


def test_the_name_where_the_shell_finds_it(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{started.parent}:/usr/bin")
    assert program() == "kernel-tui"


def test_the_name_where_something_else_was_started(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/tui/cli/main.py"])
    assert program() == "kernel-tui"
