"""Print text to standard output or standard error.

On a terminal, control characters become visible stand-ins. A pipe gets the text unchanged.
"""

from __future__ import annotations

import sys

import click

from tui.text.sanitize import clean_line


def echo(text: str = "", *, err: bool = False) -> None:
    """Print one or more lines and a line break."""
    stream = sys.stderr if err else sys.stdout
    click.echo(clean(text) if stream.isatty() else text, err=err)


def clean(text: str) -> str:
    """Make each line of ``text`` safe for a terminal, without cutting lines."""
    return "\n".join(clean_line(line, len(line)) for line in text.split("\n"))
