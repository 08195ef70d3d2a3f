"""Pieces that the tabs share: headings, named values, wrapped prose."""

from __future__ import annotations

import textwrap

from rich.style import Style
from textual.strip import Strip

from tui.palette import Palette
from tui.sanitize import clean_lines
from tui.widgets.lines import line

LABEL = 13


def heading(text: str, palette: Palette) -> list[Strip]:
    return [line(""), line((text, palette.title))]


def field(name: str, value: str, palette: Palette, style: Style | None = None) -> Strip:
    return line((f"{name:<{LABEL - 1}} ", palette.dim), (value, style if style is not None else palette.text))


def wrapped(text: str, style: Style, width: int, indent: int = 0) -> list[Strip]:
    """Prose broken at blanks; its own line breaks stay."""
    room = max(20, width - indent - 1)
    lines: list[Strip] = []
    for paragraph in clean_lines(text):
        for piece in textwrap.wrap(paragraph, room, break_long_words=True) or [""]:
            lines.append(line((" " * indent + piece, style)))
    return lines
