"""Data types for a side-by-side comparison: one column per kernel or session, with each row's leaders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

Better = Literal["more", "less"]

MOST = 4
"""Maximum number of columns. More columns would not fit into 80 characters."""
NOTABLE = 1.1
"""Minimum ratio of a row's largest to its smallest figure at which the monitor highlights the row."""


class Cell(Struct, frozen=True):
    """One cell of a row. ``value`` is the cell's figure. ``low`` to ``high`` is the figure's interval, if known."""

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None


class Row(Struct, frozen=True):
    """One row of a comparison, with a cell for each column.

    ``better`` says whether larger or smaller figures lead. If it is None, the row has no leaders. Figures that
    differ by at most a factor of ``margin`` are tied. Long text wraps to at most ``fold`` lines.
    """

    label: str
    cells: tuple[Cell, ...]
    better: Better | None = None
    margin: float = 1.0
    fold: int = 1

    @property
    def differs(self) -> bool:
        return len({cell.text for cell in self.cells}) > 1

    @property
    def leaders(self) -> frozenset[int]:
        """The columns with the best figure, including ties. The set is empty if all columns tie."""
        known = {place: cell.value for place, cell in enumerate(self.cells) if cell.value is not None}
        if self.better is None or len(known) < 2:
            return frozenset()
        choose = max if self.better == "more" else min
        best = self.cells[choose(known, key=lambda place: known[place])]
        leading = frozenset(place for place in known if not self._behind(self.cells[place], best))
        return leading if len(leading) < len(known) else frozenset()

    def _behind(self, cell: Cell, best: Cell) -> bool:
        """Return whether the cell's interval trails the best interval by more than a factor of ``margin``."""
        if self.better == "more":
            return _end(cell.high, cell) * self.margin < _end(best.low, best)
        return _end(cell.low, cell) > _end(best.high, best) * self.margin

    @property
    def spread(self) -> float | None:
        """The row's largest figure divided by its smallest.

        It is None if ``better`` is None, or if the row has fewer than two figures or a figure that is not positive.
        """
        figures = [cell.value for cell in self.cells if cell.value is not None]
        if self.better is None or len(figures) < 2 or min(figures) <= 0:
            return None
        return max(figures) / min(figures)

    @property
    def notable(self) -> bool:
        """Whether the row's leaders are far ahead of the other columns."""
        spread = self.spread
        return bool(self.leaders) and (spread is None or spread >= NOTABLE)


class Head(Struct, frozen=True):
    """A column's name and glyph. ``standing`` is a key of ``tui.text.glyphs.GLYPHS``, or None for no glyph."""

    name: str
    standing: str | None = None


class Section(Struct, frozen=True):
    """Rows under a title, which may be empty."""

    title: str
    rows: tuple[Row, ...]


class Comparison(Struct, frozen=True):
    """A comparison to show: column heads, conclusions (``words``, one sentence each) and sections of rows."""

    heads: tuple[Head, ...]
    words: tuple[str, ...]
    sections: tuple[Section, ...]


def _end(end: float | None, cell: Cell) -> float:
    """Return ``end``, one end of the cell's interval, or the cell's figure if the cell has no interval."""
    return end if end is not None else cell.value or 0.0


def words(text: str | None) -> Cell:
    """Return a cell that contains only text."""
    return Cell(text if text else "-")


def known_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the rows in which at least one cell is not empty."""
    return tuple(row for row in rows if any(cell.text not in ("", "-") for cell in row.cells))
