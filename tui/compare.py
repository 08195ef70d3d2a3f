"""Things side by side: a column each, and in every row what leads, as far as that can be told. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

Better = Literal["more", "less"]

MOST = 4
"""Columns that a person can still compare at a glance, and that fit into 80."""
NOTABLE = 1.1
"""How many times the worst figure of a row must be the best, or the other way round, to stand out more than others."""


class Cell(Struct, frozen=True):
    """What a column says in a row. ``value``: its figure, None where it has none; ``low`` and ``high`` are the ends of
    its interval, None where none is known."""

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None


class Row(Struct, frozen=True):
    """``better``: which figures lead, None where none is better than another. ``margin``: figures that differ by no
    more than this factor are as good as equal. ``fold``: lines that a long text may take."""

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
        """Columns that lead: the best figure and all that cannot be told from it. Empty where that is all of them."""
        known = {place: cell.value for place, cell in enumerate(self.cells) if cell.value is not None}
        if self.better is None or len(known) < 2:
            return frozenset()
        choose = max if self.better == "more" else min
        best = self.cells[choose(known, key=lambda place: known[place])]
        leading = frozenset(place for place in known if not self._behind(self.cells[place], best))
        return leading if len(leading) < len(known) else frozenset()

    def _behind(self, cell: Cell, best: Cell) -> bool:
        """Whether the intervals of the two are apart, by more than ``margin``."""
        if self.better == "more":
            return _end(cell.high, cell) * self.margin < _end(best.low, best)
        return _end(cell.low, cell) > _end(best.high, best) * self.margin

    @property
    def spread(self) -> float | None:
        """The largest figure of the row / its smallest, where one is better than another."""
        figures = [cell.value for cell in self.cells if cell.value is not None]
        if self.better is None or len(figures) < 2 or min(figures) <= 0:
            return None
        return max(figures) / min(figures)

    @property
    def notable(self) -> bool:
        """Whether its leaders are ahead by much."""
        spread = self.spread
        return bool(self.leaders) and (spread is None or spread >= NOTABLE)


class Head(Struct, frozen=True):
    """The name of a column. ``standing``: a key of ``tui.glyphs.GLYPHS``, None for no glyph."""

    name: str
    standing: str | None = None


class Section(Struct, frozen=True):
    """Rows under a title; "" for none."""

    title: str
    rows: tuple[Row, ...]


class Comparison(Struct, frozen=True):
    """``words``: what it comes to, a sentence each."""

    heads: tuple[Head, ...]
    words: tuple[str, ...]
    sections: tuple[Section, ...]


def _end(end: float | None, cell: Cell) -> float:
    """An end of the cell's interval; its figure itself where none is known."""
    return end if end is not None else cell.value or 0.0


def words(text: str | None) -> Cell:
    """A cell without a figure."""
    return Cell(text if text else "-")


def known_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Without those of which no column knows anything."""
    return tuple(row for row in rows if any(cell.text not in ("", "-") for cell in row.cells))
