"""The live tree: a virtual list of rows. The cursor stays on its node while the search adds rows."""

from __future__ import annotations

import textwrap
from collections.abc import Collection
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip

from tui.monitor.messages import NodeHighlighted, NodeOpened, RowsReshaped
from tui.monitor.panes.lines import EMPTY, LineWidget, line
from tui.monitor.panes.tree.rows import TreeRows
from tui.monitor.panes.tree.tree_lines import RowLines
from tui.text.runoff_text import TIED_BUT_WIDE, UNCERTAIN_RUNOFF
from tui.text.sanitize import one_line
from tui.view.activity import OPENING
from tui.view.model import Model
from tui.view.row import Row

MAX_DRAWN = 200
"""Approximate number of rows on a screen. The tree caches ten times as many drawn rows."""


class SearchTree(LineWidget):
    """A widget that draws the rows of ``TreeRows`` as they come into view."""

    HELP = (
        "The search as a tree of problems, rounds, ideas and kernels (t: by lineage). A runoff times the leaders side "
        "by side and determines which kernel is the best (the star). For a kernel that a runoff timed, speedup and "
        "time are the best kernel's, scaled by the ratio of their times. Other kernels show the figures of their own "
        "verdicts. These figures are dim if they look better than the best kernel's. In that case, "
        "'no runoff with v7' means that no runoff timed the kernel side by side with v7, the best kernel. "
        f"'{UNCERTAIN_RUNOFF} v7' means that the kernel lost a runoff whose result is uncertain. "
        f"'{TIED_BUT_WIDE}' marks the runoff's first kernel if its interval is wide and a tied kernel is the best. "
        "A round's speedup is that of its leader."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor(-1)", "up", show=False),
        Binding("down,j", "cursor(1)", "down", show=False),
        Binding("left,h", "close", "fold, or go to the parent row", show=False),
        Binding("right,l", "open", "unfold, or go to the next row", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False),
        Binding("home,g", "edge(0)", "first row", show=False),
        Binding("end,G", "edge(-1)", "last row", show=False),
        Binding("space", "toggle_fold", "fold or unfold", show=False),
        Binding("asterisk", "toggle_all", "fold or unfold all rounds", show=False),
    ]

    cursor: reactive[int] = reactive(0, repaint=False)

    def __init__(self, model: Model, rows: TreeRows, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.can_focus = True
        self.model = model
        self.tree_rows = rows
        self.marked: tuple[str, ...] = ()
        self._node: str | None = None
        self._shown: dict[int, Strip] = {}
        """The strip on the screen, by line of the widget."""
        self._drawn: dict[str, tuple[Row, int, Strip]] = {}
        """Row, width and strip, by node."""
        self._artist: RowLines | None = None

    @property
    def row(self) -> Row | None:
        rows = self.tree_rows.rows
        return rows[self.cursor] if 0 <= self.cursor < len(rows) else None

    def replace(self, model: Model, rows: TreeRows) -> None:
        """Use a new state. ``restyle`` and ``refresh_rows`` then show the state and, if possible, keep the cursor's
        node.
        """
        self.model, self.tree_rows = model, rows

    def restyle(self) -> None:
        """Redraw everything after a change of colors, width or order."""
        self._artist = None
        self._drawn.clear()
        self._shown.clear()
        self.refresh()

    def refresh_rows(self, changed: Collection[str] | None = None) -> None:
        """Update the rows, and redraw the visible lines that changed.

        ``changed`` lists the nodes whose text may have changed, or is None for all nodes.
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
            # The node's round ended, and the tree folded it, so unfold it.
            if place is None and not self.tree_rows.view.filter:
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
                elif self.scroll_offset.y > 0:  # The user scrolled away, so keep showing the same rows.
                    self._scroll_along(self.scroll_offset.y + shift)
        elif rows:
            self._move(0, by_hand=False)
        self._refresh_changed()

    def select(self, node: str, *, by_hand: bool = True) -> bool:
        """Move the cursor to ``node`` and unfold its ancestors.

        Returns False if the node does not exist or the filter hides it.
        """
        place = self.tree_rows.reveal(node)
        if place is None:
            return False
        self.set_content_size(0, len(self.tree_rows.rows))
        self._shown.clear()
        self._move(place, by_hand=by_hand)
        self.refresh()
        return True

    def show_cursor(self) -> None:
        """Scroll the selected row into view."""
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

    def watch_show_vertical_scrollbar(self) -> None:
        """Redraw the rows. The scrollbar changes their width by a column without a resize event."""
        self.call_after_refresh(self._reshape)

    def _reshape(self) -> None:
        self.restyle()
        self.post_message(RowsReshaped())

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
        self.tree_rows.toggle_all()
        if self._node is not None and self.tree_rows.find(self._node) is None:
            seen = (
                node for node in reversed(self.tree_rows.above(self._node)) if self.tree_rows.find(node) is not None
            )
            self._node = next(seen, None)
        self.refresh_rows()

    def next_match(self, step: int) -> None:
        """Move to the next or previous idea or kernel that the filter matches."""
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
            self.post_message(NodeOpened())

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
            self.post_message(NodeHighlighted(self.row, by_hand))

    def _cursor_is_seen(self) -> bool:
        """Return whether the cursor's row is in view. The user may have scrolled away with the mouse."""
        height = self.scrollable_content_region.height
        return height <= 0 or 0 <= self.cursor - self.scroll_offset.y < height

    def _scroll_along(self, top: int) -> None:
        """Keep the same rows in view after other rows appear or disappear. ``top`` is the new index of the first row in
        view.

        Textual's own scrolling would repaint every line, although nothing in view has moved.
        """
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
            # Textual draws the scrollbar in eighths of a cell.
            steps = 8 * self.size.height / max(1, self.virtual_size.height)
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
        """Draw one line of the text for an empty tree."""
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
        if known is not None and known[:2] == (row, width):
            strip = known[2]
        else:
            if self._artist is None:
                self._artist = RowLines(self.model, self.palette, ascii_only=self.ascii_only)
            marked = row.id in self.marked
            strip = self._artist.draw(row, width, marked=marked, why=self.tree_rows.why)
            self._drawn[row.id] = (row, width, strip)
        if y == self.cursor:  # Draw the cursor's background under the row's own colors.
            style = self.palette.cursor if self.has_focus else self.palette.cursor_blurred
            if style.reverse:  # Reverse video would hide some of the terminal's own colors.
                return Strip([Segment(strip.extend_cell_length(width).text, style)])
            return Strip([*strip.extend_cell_length(width)]).apply_style(style)
        return strip


def nothing_here(model: Model, filtered_by: str) -> str:
    """Return the text for an empty tree."""
    if filtered_by and model.state.problems:
        return f"Nothing matches {one_line(filtered_by, 200)}. Press esc to clear the filter."
    if model.is_opening:
        return OPENING
    if refused := list(model.state.refused.values()):
        return " ".join(f"{one.problem} is not searched: {one.reason.rstrip('.')}." for one in refused)
    if model.link.kind == "ended":
        return "The engine ended before it opened a problem. The log (5) says why."
    return "No problem is open yet. The engine is inspecting the problems, which then appear here."
