"""The live tree: a virtual list of rows with a cursor that stays on its node while the search adds others."""

from __future__ import annotations

import textwrap
from collections.abc import Collection
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from tui.model import Model
from tui.row import Row
from tui.rows import TreeRows
from tui.sanitize import one_line
from tui.widgets.lines import EMPTY, LineWidget, line
from tui.widgets.tree_lines import RowLines

MAX_DRAWN = 200
"""Rows of one screen, roughly: ten times that many drawn rows are kept."""


class SearchTree(LineWidget):
    """Rows of ``TreeRows``, drawn when they are seen."""

    HELP = (
        "The search as a tree: problems, rounds, ideas, kernels (or by lineage with t). 'speedup' and 'ms' are of a "
        "kernel's own verdict, beside PyTorch in its own minute; where others load the machine, minutes differ. The "
        "star goes by the heat, which times the leaders side by side. Who has more speedup or fewer ms but no star "
        "says why: 'heat +3%' took 3 % longer there, 'no heat with v7' was not timed beside it. A round's speedup is "
        "its leader's: as much less than the star's as the heat says."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor(-1)", "up", show=False),
        Binding("down,j", "cursor(1)", "down", show=False),
        Binding("left,h", "close", "fold, or go to the row above", show=False),
        Binding("right,l", "open", "unfold, or go into", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False),
        Binding("home,g", "edge(0)", "first row", show=False),
        Binding("end,G", "edge(-1)", "last row", show=False),
        Binding("space", "toggle_fold", "fold or unfold", show=False),
        Binding("asterisk", "toggle_all", "fold or unfold all rounds", show=False),
    ]

    cursor: reactive[int] = reactive(0, repaint=False)

    class Highlighted(Message):
        """The cursor is on another node. ``by_hand``: a person moved it."""

        def __init__(self, row: Row | None, by_hand: bool) -> None:
            super().__init__()
            self.row = row
            self.by_hand = by_hand

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, SearchTree.Highlighted)

    class Opened(Message):
        """Enter or a second click on a row."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    def __init__(self, model: Model, rows: TreeRows, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.can_focus = True
        self.model = model
        self.tree_rows = rows
        self.marked: tuple[str, ...] = ()
        self._node: str | None = None
        self._shown: dict[int, Strip] = {}  # by line of the widget: what stands there on the screen
        self._drawn: dict[str, tuple[Row, Strip]] = {}
        self._artist: RowLines | None = None

    @property
    def row(self) -> Row | None:
        rows = self.tree_rows.rows
        return rows[self.cursor] if 0 <= self.cursor < len(rows) else None

    def replace(self, model: Model, rows: TreeRows) -> None:
        """Another session's state. ``restyle`` and ``refresh_rows`` then show it, the cursor on the same node if it is
        there."""
        self.model, self.tree_rows = model, rows

    def restyle(self) -> None:
        """Draw everything anew: other colours, another width, another order."""
        self._artist = None
        self._drawn.clear()
        self._shown.clear()
        self.refresh()

    def refresh_rows(self, changed: Collection[str] | None = None) -> None:
        """Take in what changed: rows come and go, visible lines are drawn again where they differ.

        ``changed``: the nodes whose rows may say something else, None for all of them.
        """
        if changed is None:
            self._drawn.clear()
        else:
            for node in changed:
                self._drawn.pop(node, None)
        rows = self.tree_rows.rows
        line_before, seen = self.cursor - self.scroll_offset.y, self._cursor_is_seen()
        self.set_content_size(0, len(rows))
        if self._node is not None:
            place = self.tree_rows.find(self._node, self.cursor)
            if place is None and not self.tree_rows.view.filter:  # its round has finished and folded: stay in it
                place = self.tree_rows.reveal(self._node)
                rows = self.tree_rows.rows
                self.set_content_size(0, len(rows))
            if place is None:
                self._move(min(self.cursor, len(rows) - 1), by_hand=False)
            else:
                shift = place - self.cursor
                self.set_reactive(SearchTree.cursor, place)
                if seen:
                    self._scroll_along(place - line_before)
                elif self.scroll_offset.y > 0:  # a person scrolled away: keep the view on what it showed
                    self._scroll_along(self.scroll_offset.y + shift)
        elif rows:
            self._move(0, by_hand=False)
        self._refresh_changed()

    def select(self, node: str, *, by_hand: bool = True) -> bool:
        """Move the cursor to ``node``, unfolding what hides it. False if it is not there or filtered out."""
        place = self.tree_rows.reveal(node)
        if place is None:
            return False
        self.set_content_size(0, len(self.tree_rows.rows))
        self._shown.clear()
        self._move(place, by_hand=by_hand)
        self.refresh()
        return True

    def show_cursor(self) -> None:
        """Scroll to the selected row if it is not on the screen."""
        height, top = self.scrollable_content_region.height, self.scroll_offset.y
        if height <= 0:
            return
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, immediate=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, immediate=True)

    def strip_at(self, y: int) -> Strip:
        place = y - self.scroll_offset.y
        strip = self._shown.get(place)
        if strip is None:
            strip = self._shown[place] = self._draw(y)
        return strip

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        self._shown.clear()
        super().watch_scroll_y(old_value, new_value)

    def action_cursor(self, step: int) -> None:
        self._move(self.cursor + step)

    def action_page(self, step: int) -> None:
        self._move(self.cursor + step * max(1, self.size.height - 1))

    def action_edge(self, place: int) -> None:
        self._move(place if place == 0 else len(self.tree_rows.rows) - 1)

    def action_close(self) -> None:
        if (row := self.row) is None:
            return
        if row.folded is False and not self.tree_rows.view.filter:
            self._fold(row, True)
        elif (above := self.tree_rows.parent_row(self.cursor)) is not None:
            self._move(above)

    def action_open(self) -> None:
        if (row := self.row) is None:
            return
        if row.folded:
            self._fold(row, False)
        else:
            self._move(self.cursor + 1)

    def action_toggle_fold(self) -> None:
        if (row := self.row) is not None and row.folded is not None:
            self._fold(row, not row.folded)

    def action_toggle_all(self) -> None:
        rounds = [row for row in self.tree_rows.rows if row.kind == "round"]
        self.tree_rows.fold_all(any(not row.folded for row in rounds) or not rounds)
        if self._node is not None and self.tree_rows.find(self._node) is None:
            seen = (
                node for node in reversed(self.tree_rows.above(self._node)) if self.tree_rows.find(node) is not None
            )
            self._node = next(seen, None)
        self.refresh_rows()

    def next_match(self, step: int) -> None:
        """Move to the next row that the filter matches itself."""
        rows = self.tree_rows.rows
        for distance in range(1, len(rows) + 1):
            place = (self.cursor + step * distance) % len(rows)
            if rows[place].match and rows[place].kind in ("idea", "variant"):
                self._move(place)
                return

    def on_click(self, event: events.Click) -> None:
        place = self.scroll_offset.y + event.y
        rows = self.tree_rows.rows
        if not 0 <= place < len(rows):
            return
        on_fold = rows[place].folded is not None and event.x < 2 * rows[place].depth + 2
        self._move(place)
        if on_fold:
            self.action_toggle_fold()
        elif event.chain == 2:
            self.post_message(self.Opened(rows[place]))

    def on_resize(self) -> None:
        self.restyle()
        self.call_after_refresh(self.show_cursor)

    def on_focus(self) -> None:
        self._redraw(self.cursor)

    def on_blur(self) -> None:
        self._redraw(self.cursor)

    def _fold(self, row: Row, folded: bool) -> None:
        self.tree_rows.fold(row.id, folded)
        self.refresh_rows()

    def _move(self, place: int, by_hand: bool = True) -> None:
        rows = self.tree_rows.rows
        place = min(max(0, place), len(rows) - 1)
        before, self.cursor = self.cursor, max(0, place)
        node = rows[place].id if rows else None
        for y in (before, self.cursor):
            self._redraw(y)
        self.show_cursor()
        if node != self._node or by_hand:
            self._node = node
            self.post_message(self.Highlighted(self.row, by_hand))

    def _cursor_is_seen(self) -> bool:
        """Whether its row is on the screen. It is not where a person scrolled away from it with the mouse."""
        height = self.scrollable_content_region.height
        return height <= 0 or 0 <= self.cursor - self.scroll_offset.y < height

    def _scroll_along(self, top: int) -> None:
        """Rows came or went: show the same rows at their new places, from row ``top`` on, or as near as there are rows.
        To scroll there as Textual does would paint every line again, although nothing on the screen has moved."""
        before = self.scroll_offset.y
        after = min(max(0, top), self.max_scroll_y)
        if after != top:
            self._shown.clear()
            self.refresh()
        if after == before:
            return
        self.set_reactive(SearchTree.scroll_y, float(after))
        self.set_reactive(SearchTree.scroll_target_y, float(after))
        if self.show_vertical_scrollbar:
            bar = self.vertical_scrollbar
            steps = 8 * self.size.height / max(1, self.virtual_size.height)  # it is drawn in eighths of a cell
            if int(bar.position * steps) != int(after * steps):
                bar.position = after

    def _redraw(self, y: int) -> None:
        place = y - self.scroll_offset.y
        self._shown.pop(place, None)
        self.refresh(Region(0, place, self.size.width, 1))

    def _refresh_changed(self) -> None:
        top, height, width = self.scroll_offset.y, self.size.height, self.size.width
        before, self._shown = self._shown, {}
        if len(self._drawn) > 10 * MAX_DRAWN:
            self._drawn.clear()
        for place in range(height):
            strip = self._shown[place] = self._draw(top + place)
            old = before.get(place)
            if old is not strip and old != strip:
                self.refresh(Region(0, place, width, 1))

    def _draw_empty(self, y: int) -> Strip:
        """Why there is nothing to see."""
        told = nothing_here(self.model, self.tree_rows.view.filter)
        lines = textwrap.wrap(told, max(10, self.scrollable_content_region.width - 2))
        return line((f" {lines[y]}", self.palette.dim)) if y < len(lines) else EMPTY

    def _draw(self, y: int) -> Strip:
        rows = self.tree_rows.rows
        if not rows:
            return self._draw_empty(y)
        if not 0 <= y < len(rows):
            return EMPTY
        row = rows[y]
        width = self.scrollable_content_region.width
        known = self._drawn.get(row.id)
        if known is not None and known[0] == row:
            strip = known[1]
        else:
            if self._artist is None:
                self._artist = RowLines(self.model, self.palette, ascii_only=self.ascii_only)
            strip = self._artist.draw(row, width, marked=row.id in self.marked)
            self._drawn[row.id] = (row, strip)
        if y == self.cursor:  # the cursor's background goes under the row's own colours
            style = self.palette.cursor if self.has_focus else self.palette.cursor_blurred
            if style.reverse:  # over colours of the terminal's own, reversal would hide some of them
                return Strip([Segment(strip.extend_cell_length(width).text, style)])
            return Strip([*strip.extend_cell_length(width)]).apply_style(style)
        return strip


def nothing_here(model: Model, filtered_by: str) -> str:
    """What a tree without a row says."""
    if filtered_by and model.state.problems:
        return f"Nothing matches {one_line(filtered_by, 200)}; esc drops the filter."
    if not model.opened:
        return "Opening the session …"
    if model.link.kind == "ended":
        return "The engine ended before it had opened a problem; the log says why."
    return "No problem yet. Each stands here once it has been inspected, with its rounds, ideas and kernels."
