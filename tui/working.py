"""One calm line on a terminal's standard error while a command works: what it does now, and for how long it has.

Beside it, on a terminal or not, what it has to wait for.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from tui.echo import echo
from tui.sanitize import one_line

if TYPE_CHECKING:
    from engine.workers.waiting import Wait


class Working:
    """``say`` replaces what the line says; ``note`` writes a line that stays."""

    def __init__(self, say: Callable[[str], None], note: Callable[[str], None]) -> None:
        self.say = say
        self.note = note
        self._waited = False

    def on_wait(self, wait: Wait) -> None:
        """Note, once, that a device is held by another process."""
        from tui.waiting import held_in_words

        if not self._waited:
            self._waited = True
            held = held_in_words(wait.pid, wait.command, wait.held_since, time.time())
            self.note(one_line(f"waiting for the device ({wait.device.name}): {held}", 300))


@contextlib.contextmanager
def working(first: str, *, quiet: bool = False) -> Iterator[Working]:
    """Shows ``first`` and then what is said, rewritten in place and gone at the end. Where the answer, or what is said
    meanwhile, goes elsewhere than to a terminal, and where it is ``quiet`` (the answer is for a script), it says
    nothing but what is waited for."""
    on_terminal = sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if quiet or not on_terminal:
        yield Working(lambda text: None, partial(echo, err=True))
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
