"""Draw a comparison as lines with columns. A sign marks each row's leader, which is bold if far ahead."""

from __future__ import annotations

import textwrap

from rich.cells import cell_len, chop_cells
from textual.strip import Strip

from tui.compare.comparison import Comparison, Row
from tui.monitor.panes.lines import Part, line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.glyphs import GLYPHS, glyph
from tui.text.sanitize import clean_line

LABEL_MOST = 30
GAP = 2
COLUMN_LEAST, COLUMN_MOST = 10, 44
SPREAD_WIDTH = 8


def leading_sign(*, ascii_only: bool) -> str:
    return "<" if ascii_only else "◂"


def head_line(comparison: Comparison, palette: Palette, width: int, *, ascii_only: bool) -> Strip:
    """Return the line with the column names."""
    label, column, spread = _widths(comparison, width)
    parts: list[Part] = [" " * label]
    for head in comparison.heads:
        sign = f"{glyph(head.standing, ascii_only=ascii_only)} " if head.standing is not None else ""
        style = palette.named(GLYPHS[head.standing].style) if head.standing is not None else palette.title
        name = fmt.fit(head.name, column - GAP - len(sign))
        parts += [(sign, style), (fmt.pad(name, column - len(sign)), palette.title)]
    if spread:
        parts.append(("apart", palette.dim))
    return line(*parts)


def table_lines(
    comparison: Comparison, palette: Palette, width: int, *, ascii_only: bool, tall: bool = False
) -> list[Strip]:
    """Return the rows of all sections. A row without differences is dim.

    The last column, ``apart``, is the row's largest figure divided by its smallest. With ``tall``, long texts get twice
    as many lines.
    """
    widths = _widths(comparison, width)
    lines: list[Strip] = []
    for section in comparison.sections:
        if section.title:
            lines += [line(""), line((section.title, palette.title))]
        for row in section.rows:
            lines += _row(row, widths, palette, ascii_only=ascii_only, stretch=2 if tall else 1)
    return lines


def table_width(comparison: Comparison, width: int) -> int:
    """Return how many of ``width`` cells the table uses."""
    label, column, spread = _widths(comparison, width)
    return label + column * len(comparison.heads) + spread


def _row(
    row: Row, widths: tuple[int, int, int], palette: Palette, *, ascii_only: bool, stretch: int = 1
) -> list[Strip]:
    label, column, spread = widths
    leaders = row.leaders
    calm = palette.text if row.differs else palette.dim
    pieces = [_pieces(cell.text, column - GAP, row.fold if row.fold == 1 else row.fold * stretch) for cell in row.cells]
    lines = []
    for number in range(max(len(one) for one in pieces)):
        parts: list[Part] = [(fmt.pad(row.label if number == 0 else "", label - 1) + " ", palette.dim)]
        for place, texts in enumerate(pieces):
            text = texts[number] if number < len(texts) else ""
            if place in leaders and number == 0:
                sign = leading_sign(ascii_only=ascii_only)
                style = palette.best if row.notable else palette.good
                parts.append((fmt.pad(f"{fmt.fit(text, column - GAP - 2)} {sign}", column), style))
            else:
                parts.append((fmt.pad(text, column), calm))
        if spread and number == 0 and leaders and row.spread is not None:
            parts.append((f"{row.spread:.2f}x" if row.spread < 100 else f"{row.spread:.0f}x", palette.dim))
        lines.append(line(*parts))
    return lines


def _pieces(text: str, room: int, most: int) -> list[str]:
    """Split ``text`` into at most ``most`` lines of ``room`` cells, and cut the last line if necessary."""
    text = clean_line(text)
    if most == 1 or cell_len(text) <= room:
        return [fmt.fit(text, room)]
    broken = textwrap.wrap(text, room, break_long_words=True) or [""]
    if not text.isascii():
        broken = [part for piece in broken for part in (chop_cells(piece, room) if cell_len(piece) > room else [piece])]
    if len(broken) > most:
        broken[most - 1 :] = [fmt.fit(" ".join(broken[most - 1 :]), room)]
    return broken


def _widths(comparison: Comparison, width: int) -> tuple[int, int, int]:
    """Return the widths of the labels, of each column, and of the last column, ``apart`` (0 if it does not fit)."""
    rows = [row for section in comparison.sections for row in section.rows]
    longest = max((cell_len(row.label) for row in rows), default=0)
    label = min(longest, LABEL_MOST, width // 4) + 1
    columns = max(1, len(comparison.heads))
    wanted = max(
        [cell_len(head.name) + 2 for head in comparison.heads]
        + [cell_len(cell.text) + (2 if row.better else 0) for row in rows for cell in row.cells],
        default=COLUMN_LEAST,
    )
    spread = SPREAD_WIDTH if width >= label + columns * 18 + SPREAD_WIDTH else 0
    room = max(COLUMN_LEAST, (width - label - spread) // columns)
    return label, max(COLUMN_LEAST, min(wanted + GAP, room, COLUMN_MOST)), spread
