"""Words on standard output or standard error. What a terminal would act on is shown, never sent to it.

A pipe gets the text to the letter: a prompt goes on to a model, JSON to a script.
"""

from __future__ import annotations

import sys

import click

from tui.sanitize import clean_line


def echo(text: str = "", *, err: bool = False) -> None:
    """A line, or several, and a line break."""
    stream = sys.stderr if err else sys.stdout
    click.echo(clean(text) if stream.isatty() else text, err=err)


def clean(text: str) -> str:
    """``text`` made safe for a terminal, line by line, nothing left out."""
    return "\n".join(clean_line(line, len(line)) for line in text.split("\n"))
