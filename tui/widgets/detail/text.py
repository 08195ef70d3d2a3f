"""Pieces that the tabs share: headings, named values, wrapped prose."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
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
        for piece in _pieces(paragraph, room) or [""]:
            lines.append(line((" " * indent + piece, style)))
    return lines


def folded(strips: Iterable[Strip], width: int) -> list[Strip]:
    """The lines with those that are wider than ``width`` broken; what follows stands under the last part of its line
    (the value under its label's value), or a little further in than its line where that would leave no room."""
    room = max(20, width)
    lines: list[Strip] = []
    for strip in strips:
        lines += [strip] if strip.cell_length <= room else _folded(list(strip), room)
    return lines


def _folded(segments: list[Segment], room: int) -> list[Strip]:
    *head, tail = segments
    if head and tail.text.startswith(" "):
        bare = tail.text.lstrip()
        head, tail = [*head, Segment(" " * (len(tail.text) - len(bare)))], Segment(bare, tail.style)
    indent = sum(segment.cell_length for segment in head)
    if indent > room // 2:  # nothing to align with: the parts one under the other
        return [Strip(head).crop(0, room), *folded([Strip([Segment("  ", tail.style), tail])], room)]
    if not head:
        blanks = min(len(tail.text) - len(tail.text.lstrip()), room // 2)
        head, tail, indent = [Segment(" " * blanks)], Segment(tail.text.lstrip(), tail.style), blanks
        first, *rest = _pieces(tail.text, room - indent - 2) or [""]
        indent += 2
    else:
        first, *rest = _pieces(tail.text, room - indent) or [""]
    return [
        Strip([*head, Segment(first, tail.style)]),
        *(Strip([Segment(" " * indent), Segment(piece, tail.style)]) for piece in rest),
    ]


def _pieces(text: str, room: int) -> list[str]:
    """``text`` in pieces of at most ``room`` cells, broken at blanks where there are some."""
    pieces = textwrap.wrap(text, room, break_long_words=True, replace_whitespace=False)
    if text.isascii():
        return pieces
    return [part for piece in pieces for part in (chop_cells(piece, room) if cell_len(piece) > room else [piece])]
