"""Print text to standard output or standard error.

On a terminal, control characters become visible stand-ins. A pipe gets the text with its control characters.
"""

from __future__ import annotations

import sys

import click

from tui.text.program import as_typed
from tui.text.sanitize import clean_line


def echo(text: str = "", *, err: bool = False, is_message: bool = True) -> None:
    """Print one or more lines and a line break.

    The commands that a message suggests start as the user started this program. ``is_message`` is false for a source,
    a prompt or JSON, which must stay as they are.
    """
    stream = sys.stderr if err else sys.stdout
    text = as_typed(text) if is_message else text
    click.echo(clean(text) if stream.isatty() else text, err=err)


def clean(text: str) -> str:
    """Make each line of ``text`` safe for a terminal, without cutting lines."""
    return "\n".join(clean_line(line, len(line)) for line in text.split("\n"))
