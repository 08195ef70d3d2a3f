"""One calm line on a terminal's standard error while a command works: what it does now, and for how long it has."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from tui.sanitize import one_line

Say = Callable[[str], None]
"""Replaces what the line says."""


@contextlib.contextmanager
def working(first: str) -> Iterator[Say]:
    """Shows ``first`` and then what is said, rewritten in place and gone at the end. Elsewhere than on a terminal it
    says nothing, so that a log or a script sees only the answer."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda text: None
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
        yield lambda said: bar.update(task, description=one_line(said, 60))
