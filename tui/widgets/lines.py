"""Lines of styled text on Textual's Line API: a pane redraws the lines that changed and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.palette import Palette, palette_of
from tui.sanitize import clean_line

Part = str | tuple[str, Style]


def line(*parts: Part) -> Strip:
    """One line from texts and (text, style) pairs. Whatever the text, nothing in it reaches the terminal unshown."""
    segments = []
    for part in parts:
        text, style = (part, None) if isinstance(part, str) else part
        if text:
            segments.append(Segment(clean_line(text), style))
    return Strip(segments)


EMPTY = Strip([])


class LineWidget(ScrollView, inherit_bindings=False):
    """Base of all panes: one strip per line, drawn over the pane's own background."""

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
    """Whether a line that is too long ends in an ellipsis, at the right edge."""
    _barred = 0
    """The height that the scrollbar was last drawn for."""
    _ground = Style()
    """What lines are drawn on: the pane's own colours."""

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
        """Long lines are scrolled by keys, without a bar."""
        return self.max_scroll_x > 0

    def set_content_size(self, width: int, height: int) -> None:
        """How much there is to scroll. A new layout only where the widget's own height or its scrollbar depends on it:
        a layout of the whole screen for every line that is added would cost more than all else."""
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
        """The line at ``y``, counted from the top of the whole text. Every pane has its own way to it."""
        raise NotImplementedError  # no ABC: Textual's widgets have a metaclass of their own

    def render_lines(self, crop: Region) -> list[Strip]:
        self._ground = self.rich_style  # once for all lines: Textual derives it from every widget around this one
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
    """A pane whose lines are all at hand."""

    def __init__(self, *, id: str | None = None, classes: str | None = None, focusable: bool = True) -> None:
        super().__init__(id=id, classes=classes)
        self.can_focus = focusable
        self._lines: list[Strip] = []

    @property
    def lines(self) -> Sequence[Strip]:
        return self._lines

    def set_lines(self, lines: list[Strip]) -> None:
        """Show ``lines``; what is the same as before is not drawn again."""
        before, self._lines = self._lines, lines
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
        return self._lines[y] if y < len(self._lines) else EMPTY
