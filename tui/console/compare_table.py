"""Print a comparison as one table, with ``*`` after the best values of each row."""

from __future__ import annotations

from textwrap import fill

from rich.text import Text

from tui.compare.comparison import Comparison, Row
from tui.console.clean_console import print_prose
from tui.console.tables import columns, console, print_marked
from tui.text.sanitize import clean_line

LEADS = "*"
LEGEND = f"{LEADS}: the row's leader, and figures with an interval that overlaps the leader's"

_TITLE = 25
"""Minimum width of section titles, in characters."""


def print_side_by_side(comparison: Comparison) -> None:
    out = console()
    table = columns("", *(clean_line(head.name) for head in comparison.heads))
    table.columns[0].no_wrap = True
    # Break a long section title, such as a problem's name, so that the columns keep their width.
    room = max(_TITLE, *(len(row.label) for section in comparison.sections for row in section.rows))
    for section in comparison.sections:
        if section.title:
            table.add_section()
            table.add_row(Text(fill(clean_line(section.title), room), style="bold"))
        for row in section.rows:
            table.add_row(Text(clean_line(row.label)), *_cells(row))
    marked = any(row.leaders for section in comparison.sections for row in section.rows)
    print_marked(out, table, LEGEND if marked else None)
    for text in comparison.words:
        print_prose(out, clean_line(text))


def _cells(row: Row) -> list[Text]:
    leaders = row.leaders
    return [
        Text(f"{clean_line(cell.text)} {LEADS}", style="bold")
        if place in leaders
        else Text(clean_line(cell.text), style="" if row.differs else "dim")
        for place, cell in enumerate(row.cells)
    ]
