"""Terminal features: clipboard through SSH and tmux, notifications, and the exit of an orphaned monitor."""

from __future__ import annotations

import base64
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from engine.exit_codes import ExitCode
from tui.text.sanitize import one_line

if TYPE_CHECKING:
    from textual.app import App

ORPHAN_POLL_S = 0.5
HARD_EXIT_S = 2.0
MAX_CLIPBOARD = 1 << 20
CLEAR_SEQUENCE = "\x1b[?1049h\x1b[?25l\x1b[r\x1b(B\x1b[0m\x1b[2J"
"""Escape sequence that selects the alternate screen, hides the cursor, resets the scroll region, the character set and
the style, and clears the screen."""
PLAIN_TERMINALS = ("linux", "vt100", "vt220", "dumb")


def shows_unicode() -> bool:
    """Return whether the terminal can show Unicode glyphs. ``KERNEL_TUI_ASCII=1`` disables them."""
    if os.environ.get("KERNEL_TUI_ASCII") or os.environ.get("TERM") in PLAIN_TERMINALS:
        return False
    return "utf" in (getattr(sys.__stdout__, "encoding", None) or "").lower()


def clipboard_sequence(text: str) -> str:
    """Return an OSC 52 sequence, which copies ``text`` to the terminal's clipboard. Works over SSH too."""
    encoded = base64.b64encode(text.encode("utf-8", "replace")[:MAX_CLIPBOARD]).decode("ascii")
    return f"\x1b]52;c;{encoded}\x07"


def tmux_clipboard(text: str) -> None:
    """Also copy ``text`` to tmux's buffer, since tmux does not forward OSC 52 by default."""
    if not os.environ.get("TMUX"):
        return
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            ["tmux", "load-buffer", "-w", "-"],
            input=text.encode("utf-8", "replace"),
            check=False,
            timeout=2,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def notification_sequence(text: str) -> str:
    """Return an OSC 9 sequence, which shows a desktop notification in terminals that support it.

    tmux forwards the sequence if ``allow-passthrough`` is on. The function replaces control characters in the text.
    """
    sequence = f"\x1b]9;{one_line(text, 200)}\x07"
    if not os.environ.get("TMUX"):
        return sequence
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"


def exit_code_of(app: App[Any]) -> int:
    """Return the app's exit code, or ``ExitCode.FAILURE`` if an exception ended the app."""
    said = app.return_value if isinstance(app.return_value, int) else 0
    # Textual sets no code for an exception in the driver's thread.
    return said or (ExitCode.FAILURE if app.return_code is None else app.return_code)


class OrphanWatch:
    """Exit when the terminal is gone, since Textual would otherwise loop forever at end of file.

    A thread first calls ``leave``. Two seconds later, the thread kills the process, which may hang on a write to the
    terminal. No data is lost, because the monitor has no unsaved data.
    """

    def __init__(self, leave: Callable[[], None], descriptor: int | None = None) -> None:
        self._leave = leave
        self._descriptor = descriptor
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="orphan-watch", daemon=True)

    def start(self) -> None:
        if self._descriptor is None:
            with suppress(OSError, ValueError, AttributeError):
                self._descriptor = sys.__stdin__.fileno() if sys.__stdin__ is not None else None
        if self._descriptor is not None and os.isatty(self._descriptor):
            self._thread.start()

    def stop(self) -> None:
        """Stop watching, since the monitor is exiting."""
        self._leaving = True

    def _run(self) -> None:
        assert self._descriptor is not None
        poll = select.poll()
        poll.register(self._descriptor, 0)
        while not any(what & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, what in poll.poll(0)):
            time.sleep(ORPHAN_POLL_S)
        if not self._leaving:
            self._leave()
        time.sleep(HARD_EXIT_S)
        os._exit(129)
