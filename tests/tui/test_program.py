"""Hints show a command that the user's shell finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.style import Style

from tests.commandline import environment
from tui.cli.main import COMMANDS
from tui.monitor.panes.detail.text import wrapped
from tui.text.program import as_typed, program
from tui.text.sanitize import one_line


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


def test_messages_suggest_the_command_that_was_started(
    started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS.keys() - {"worker", "cluster"}:
        said = f"the engine died; run kernel-tui {command} demo, or: kernel-tui {command}."
        assert as_typed(said) == said.replace("kernel-tui", ".venv/bin/kernel-tui")
    assert as_typed("Run it with: kernel-tui my.toml") == "Run it with: .venv/bin/kernel-tui my.toml"
    assert as_typed("Run it with: kernel-tui 'my 1.toml'") == "Run it with: .venv/bin/kernel-tui 'my 1.toml'"


def test_sources_prompts_and_replies_keep_the_name(started: Path) -> None:
    source = "// built with kernel-tui export demo"
    assert one_line(source) == source
    (shown,) = wrapped(source, Style(), 80, is_message=False)
    assert shown.text.rstrip() == source


@pytest.mark.parametrize(
    "said",
    [
        "a newer kernel-tui wrote this session",
        "kernel-tui stopped the inspection after 60 s",
        "/cache/kernel-tui show",
        "Usage: kernel-tui show [OPTIONS] SESSION [NODE]",
        "in use by pid 4711 (kernel-tui eval a.cpp), for 0:12",
        "then run on that host: kernel-tui doctor",
        "start a worker on each host: kernel-tui worker --scheduler tls://gpu1:8786",
    ],
)
def test_other_texts_keep_the_name(started: Path, said: str) -> None:
    assert as_typed(said) == said


def test_errors_suggest_the_command_that_was_started(started: Path, tmp_path: Path) -> None:
    started.write_text(f"#!{sys.executable}\nfrom kernel_tui.command import main\nmain()\n")
    arguments = [".venv/bin/kernel-tui", "show", "nope"]
    done = subprocess.run(
        arguments,
        cwd=tmp_path,
        env=environment() | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "with: .venv/bin/kernel-tui sessions" in done.stderr
