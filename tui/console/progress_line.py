"""Show a command's progress on one line of standard error.

The line appears only on a terminal. Elsewhere, long-running commands print one line per stage. A note that the command
is waiting for a device appears everywhere.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from tui.console.echo import echo
from tui.text.sanitize import one_line

if TYPE_CHECKING:
    from engine.evaluation.device_waits import Wait


class Working:
    """A command's progress output. ``say`` replaces the progress line; ``note`` prints a line that stays. ``flash`` is
    ``say`` for a state that usually ends at once, and prints nothing without a terminal.
    """

    def __init__(
        self, say: Callable[[str], None], note: Callable[[str], None], flash: Callable[[str], None] | None = None
    ) -> None:
        self.say = say
        self.note = note
        self.flash = flash or say
        self._waited = False

    def on_wait(self, wait: Wait) -> None:
        """Report once that another process is using the device."""
        from tui.text.waiting import held_in_words

        if not self._waited:
            self._waited = True
            held = held_in_words(wait, time.time())
            self.note(one_line(f"waiting for the device ({wait.device.name}): {held}", 300))


@contextlib.contextmanager
def working(first: str, *, quiet: bool = False, lines: bool = False) -> Iterator[Working]:
    """Yield an object that shows progress, starting with ``first``. The progress line disappears at the end.

    With ``quiet``, the object prints only notes, and without a terminal, only notes and, with ``lines``, each text that
    the command says, once.
    """
    on_terminal = sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if quiet or not on_terminal:
        say = _each_once() if lines and not quiet else _nothing
        yield Working(say, partial(echo, err=True), _nothing)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    text = TextColumn("{task.description}", markup=False)
    bar = Progress(
        SpinnerColumn(),
        text,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        refresh_per_second=4,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task(one_line(first, 60), total=None)
        yield Working(
            lambda said: bar.update(task, description=one_line(said, 60)),
            lambda noted: bar.console.print(noted, soft_wrap=True),
        )


def _each_once() -> Callable[[str], None]:
    """Return a function that prints a text on standard error, unless it has printed this text before."""
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            echo(one_line(text, 120), err=True)

    return say


def _nothing(text: str) -> None:
    """Print nothing."""
