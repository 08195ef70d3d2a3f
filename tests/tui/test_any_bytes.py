"""Invalid bytes typed into a real terminal: a monitor survives them, and a crash is reported."""

from __future__ import annotations

import os
import time

import pytest

from benchmarks.pseudo_terminal import Terminal
from engine.exit_codes import ExitCode
from engine.session.store import SessionPaths
from tests.patience import PATIENCE_S

NO_TEXT = {
    "pasted": b"\x1b[200~\xff\xfe\x1b[201~",
    "typed": b"\xff",
    "mouse": b"\x1b[M\xff\xff\xff",
    "cut short": b"\xe2\x82",
}
STRICT = "import tui.monitor.terminal.keyboard; tui.monitor.terminal.keyboard.install = lambda: None\n"
"""Textual's own decoder, which raises an exception in its driver's thread."""


def ended(terminal: Terminal) -> tuple[int, str]:
    """Return the exit status and the final content of the terminal."""
    deadline = time.monotonic() + PATIENCE_S
    while terminal.process.poll() is None and time.monotonic() < deadline:
        terminal.read_for(0.1)
    terminal.read_for(0.2)
    status, text = terminal.process.poll(), terminal.seen.decode(errors="replace")
    terminal.close()
    assert status is not None, text
    return status, text


@pytest.mark.parametrize(
    ("words", "shown"), [(["attach", "small"], "softmax"), (["replay", "small"], "softmax"), (["attach"], "small")]
)
def test_no_byte_ends_it(session: SessionPaths, words: list[str], shown: str) -> None:
    root = session.directory.parent
    terminal = Terminal(words, root / "settings", environment={"KERNEL_TUI_SESSIONS": str(root)})
    terminal.wait_for(shown)
    for data in NO_TEXT.values():
        os.write(terminal.master, data)
        terminal.read_for(0.3)
        assert terminal.process.poll() is None
    os.write(terminal.master, b"q")
    status, text = ended(terminal)
    assert status == ExitCode.OK and "Traceback" not in text


@pytest.mark.parametrize(
    ("words", "shown"), [(["attach", "small"], "softmax"), (["replay", "small"], "softmax"), (["attach"], "small")]
)
def test_an_exception_is_no_success(session: SessionPaths, words: list[str], shown: str) -> None:
    root = session.directory.parent
    terminal = Terminal(words, root / "settings", environment={"KERNEL_TUI_SESSIONS": str(root)}, extra=STRICT)
    terminal.wait_for(shown)
    os.write(terminal.master, NO_TEXT["typed"])
    status, text = ended(terminal)
    assert status == ExitCode.FAILURE and "UnicodeDecodeError" in text
