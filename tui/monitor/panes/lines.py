"""Panes of styled lines, on Textual's Line API. A pane redraws only the lines that changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.monitor.theme.palette import Palette, palette_of
from tui.text.sanitize import clean_line

Part = str | tuple[str, Style]


def line(*parts: Part) -> Strip:
    """Build a line from texts and (text, style) pairs, and replace control characters."""
    segments = []
    for part in parts:
        text, style = (part, None) if isinstance(part, str) else part
        if text:
            segments.append(Segment(clean_line(text), style))
    return Strip(segments)


EMPTY = Strip([])
AFTER_MATCH = 4
"""Divisor of the pane's width: a sideways scroll to a match leaves up to 1 / ``AFTER_MATCH`` of the width after the
match."""


class LineWidget(ScrollView, inherit_bindings=False):
    """Base class of all panes: one strip per line, over the pane's background."""

    DEFAULT_CSS = """
    LineWidget { scrollbar-size: 1 1; overflow-x: hidden; overflow-y: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "up", show=False),
        Binding("down,j", "scroll_down", "down", show=False),
        Binding("left,h", "scroll_sideways(-8)", "left", show=False),
        Binding("right,l", "scroll_sideways(8)", "right", show=False),
        Binding("pageup,ctrl+b", "page_up", "page up", show=False),
        Binding("pagedown,ctrl+f,space", "page_down", "page down", show=False),
        Binding("home,g", "scroll_home", "top", show=False),
        Binding("end,G", "scroll_end", "end", show=False),
    ]

    ellipsis: ClassVar[bool] = False
    """Whether a cut line ends in an ellipsis."""
    _barred = 0
    """The content height when the view last drew the scrollbar."""
    _ground = Style()
    """The pane's own colors, drawn under every line."""

    @property
    def palette(self) -> Palette:
        return palette_of(self.app)

    @property
    def ascii_only(self) -> bool:
        return cast(bool, getattr(self.app, "ascii_only", False))

    def action_scroll_sideways(self, columns: int) -> None:
        self.scroll_relative(x=columns, animate=False)

    @property
    def allow_horizontal_scroll(self) -> bool:
        """Whether keys scroll sideways. The pane has no horizontal scrollbar."""
        return self.max_scroll_x > 0

    def set_content_size(self, width: int, height: int) -> None:
        """Set the size of the scrollable content.

        Request a new layout only if the widget's height or scrollbar depends on this size. A layout of the whole screen
        for each added line would be slow.
        """
        size = Size(width, height)
        if size == self.virtual_size:
            return
        if self.styles.is_auto_height or not self.is_attached:
            self.virtual_size = size
            return
        before = self.virtual_size.height
        self.set_reactive(LineWidget.virtual_size, size)
        room = self.container_size.height
        crossed = (before > room) != (height > room)
        if crossed or abs(height - self._barred) * 100 > self._barred:
            self._barred = height
            self._scroll_update(size)

    def strip_at(self, y: int) -> Strip:
        """Return the line at ``y``, counted from the top of the whole text."""
        raise NotImplementedError  # An ABC is impossible: Textual's widgets have their own metaclass.

    def render_lines(self, crop: Region) -> list[Strip]:
        self._ground = self.rich_style  # Compute the style once for all lines, since Textual consults every ancestor.
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        scroll_x, scroll_y = self.scroll_offset
        width = self.scrollable_content_region.width
        style = self._ground
        strip = self.strip_at(scroll_y + y)
        if self.ellipsis and width > 0 and strip.cell_length > scroll_x + width:
            strip = Strip([*strip.crop(0, scroll_x + width - 1), Segment("…", style)])
        return strip.crop_extend(scroll_x, scroll_x + width, style).apply_style(style)


class LinesView(LineWidget):
    """A searchable pane that keeps all of its lines."""

    def __init__(self, *, id: str | None = None, classes: str | None = None, focusable: bool = True) -> None:
        super().__init__(id=id, classes=classes)
        self.can_focus = focusable
        self._lines: list[Strip] = []
        self._needle = ""
        self._hits: list[int] = []
        self._hit = 0

    @property
    def searched(self) -> str:
        """The search text, or "" without a search."""
        return self._needle

    @property
    def place(self) -> tuple[int, int]:
        """The number of the current matching line, counted from 1, and the total number of matching lines."""
        return (self._hit + 1 if self._hits else 0, len(self._hits))

    def search(self, text: str) -> None:
        """Highlight ``text``, ignoring case, and go to the first match at or below the top of the view."""
        self._needle = text
        self._find()
        top = self.scroll_offset.y
        self._hit = next((place for place, y in enumerate(self._hits) if y >= top), 0)
        self._show_hit()

    def next_match(self, step: int) -> None:
        """Go to the next or previous matching line, and wrap around at the end."""
        if self._hits:
            self._hit = (self._hit + step) % len(self._hits)
        self._show_hit()

    def _find(self) -> None:
        needle = self._needle.lower()
        self._hits = [y for y, strip in enumerate(self._lines) if needle in strip.text.lower()] if needle else []

    def _show_hit(self) -> None:
        """Scroll to the current match, sideways only if the match lies beyond the right edge of the pane."""
        if self._hits:
            y, (width, height) = self._hits[self._hit], self.scrollable_content_region.size
            text, top = self._lines[y].text, self.scroll_offset.y
            start = text.lower().find(self._needle.lower())
            end = cell_len(text[: start + len(self._needle)])
            to_x = 0 if end <= width else min(cell_len(text[:start]), end - width + width // AFTER_MATCH)
            to_y = top if top <= y < top + height else max(0, y - height // 2)
            self.scroll_to(to_x, to_y, animate=False, immediate=True)
        self.refresh()

    @property
    def lines(self) -> Sequence[Strip]:
        return self._lines

    def set_lines(self, lines: list[Strip]) -> None:
        """Show ``lines``. Redraw only the lines that differ."""
        before, self._lines = self._lines, lines
        if self._needle:
            self._find()
            self._hit = min(self._hit, max(0, len(self._hits) - 1))
        width = max((strip.cell_length for strip in lines), default=0)
        self.set_content_size(width, len(lines))
        if not self.is_attached:
            return
        top, columns = self.scroll_offset.y, self.scrollable_content_region.width
        for y in range(self.scrollable_content_region.height):
            old = before[top + y] if top + y < len(before) else EMPTY
            new = lines[top + y] if top + y < len(lines) else EMPTY
            if old != new:
                self.refresh(Region(0, y, columns, 1))

    def strip_at(self, y: int) -> Strip:
        if y >= len(self._lines):
            return EMPTY
        strip = self._lines[y]
        if not self._needle or self._needle.lower() not in strip.text.lower():
            return strip
        here = bool(self._hits) and self._hits[self._hit] == y
        return highlighted(strip, self._needle, self.palette.found_here if here else self.palette.found)


def highlighted(strip: Strip, needle: str, style: Style) -> Strip:
    """Return ``strip`` with every case-insensitive match of ``needle`` in ``style``."""
    text, wanted = strip.text.lower(), needle.lower()
    cuts: list[int] = []
    place = text.find(wanted)
    while place >= 0:
        cuts += [cell_len(text[:place]), cell_len(text[: place + len(wanted)])]
        place = text.find(wanted, place + len(wanted))
    pieces = strip.divide([*cuts, strip.cell_length])
    drawn = (Strip([Segment(piece.text, style)]) if number % 2 else piece for number, piece in enumerate(pieces))
    return Strip.join(drawn)
