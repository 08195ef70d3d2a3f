"""Output of commands cannot control the terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.synthetic_session import Shape, write_session
from engine.session.state.session_state import fold
from engine.session.store import SessionReader
from tests.commandline import environment
from tests.tui.test_monitor_hostile import poison

OWN = re.compile(r"\x1b\[[0-9;]*m")
"""Color codes, the only escape sequences that tables contain."""


def on_a_terminal(directory: Path, *arguments: str) -> str:
    """Return all bytes that ``kernel-tui ARGUMENTS`` sends to its terminal."""
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "tui.cli.main", *arguments],
        stdin=slave, stdout=slave, stderr=slave, cwd=directory, env={**environment(), "TERM": "xterm"},
    )  # fmt: skip
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:  # the other end of the terminal is closed because the command has ended
        pass
    finally:
        os.close(master)
        child.wait(30)
    return OWN.sub("", shown.decode()).replace("\r\n", "\n")


def is_safe(text: str) -> bool:
    return all(one == "\n" or not (ord(one) < 32 or 127 <= ord(one) < 160) for one in text)


def test_what_a_person_typed_comes_back_harmless_in_errors(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('problems = ["x.py"]\n"un\\u001b]0;owned\\u0007known" = 1\n')
    for arguments in (
        ("show", "nope\x1b]0;owned\x07"),
        ("config.toml",),
        ("no-such-command\x1b]0;owned\x07",),
        ("sass", "nope\x1b]0;owned\x07", "v1"),
    ):
        shown = on_a_terminal(tmp_path, *arguments)
        assert "owned" in shown and is_safe(shown), (arguments, shown)


def test_a_hostile_session_is_shown_harmless(tmp_path: Path) -> None:
    paths = write_session(tmp_path / "sessions", "demo", Shape(variants=12, problems=1, rounds=2, flying=0))
    poison(paths, 7)
    with SessionReader(paths) as reader:
        state = fold(reader.read())
    problem, idea, kernel = (next(iter(found)) for found in (state.problems, state.ideas, state.variants))
    for arguments in (
        ("sessions",),
        ("show", "demo"),
        ("show", "demo", problem, "--full"),
        ("show", "demo", idea),
        ("show", "demo", kernel, "--full"),
        ("show", "demo", kernel, "--json"),
        ("prompt", "demo", kernel),
    ):
        shown = on_a_terminal(tmp_path, *arguments)
        assert "Traceback" not in shown and is_safe(shown), (arguments, shown)
