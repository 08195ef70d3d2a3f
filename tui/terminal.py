"""The terminal around the app: clipboard through SSH and tmux, notifications, and the end of an orphaned monitor."""

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
from tui.sanitize import one_line

if TYPE_CHECKING:
    from textual.app import App

ORPHAN_POLL_S = 0.5
HARD_EXIT_S = 2.0
MAX_CLIPBOARD = 1 << 20
PLAIN_TERMINALS = ("linux", "vt100", "vt220", "dumb")


def shows_unicode() -> bool:
    """Whether the terminal's encoding and font have the glyphs; ``KERNEL_TUI_ASCII=1`` says that they do not."""
    if os.environ.get("KERNEL_TUI_ASCII") or os.environ.get("TERM") in PLAIN_TERMINALS:
        return False
    return "utf" in (getattr(sys.__stdout__, "encoding", None) or "").lower()


def clipboard_sequence(text: str) -> str:
    """OSC 52: the terminal that the person sits at puts ``text`` on its clipboard, over any number of SSH hops."""
    encoded = base64.b64encode(text.encode("utf-8", "replace")[:MAX_CLIPBOARD]).decode("ascii")
    return f"\x1b]52;c;{encoded}\x07"


def tmux_clipboard(text: str) -> None:
    """Inside tmux also through its own buffer: by default it does not pass an application's OSC 52 on."""
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
    """OSC 9: a desktop notification where the terminal knows them. The text can hold no control character.

    tmux keeps sequences that it does not know to itself, unless they are handed through (``allow-passthrough on``).
    """
    sequence = f"\x1b]9;{one_line(text, 200)}\x07"
    if not os.environ.get("TMUX"):
        return sequence
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"


def exit_code_of(app: App[Any]) -> int:
    """The code of the process whose ``app`` has just run: that of ``ExitCode.FAILURE`` where an exception ended it."""
    said = app.return_value if isinstance(app.return_value, int) else 0
    # Textual gives a code to what ``exit`` ended and to exceptions in handlers, none to one in the driver's thread.
    return said or (ExitCode.FAILURE if app.return_code is None else app.return_code)


class OrphanWatch:
    """Ends a monitor whose terminal is gone: Textual would otherwise spin on end of file for ever.

    ``leave`` is asked first, from this thread; two seconds later the process ends, whatever it is doing: also where it
    is on its way out already and waits for a thread that cannot write to the terminal any more. Nothing is lost: a
    monitor only reads.
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
        """The monitor is on its way out: it need not be asked any more."""
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
