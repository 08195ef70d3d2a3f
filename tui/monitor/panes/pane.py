"""A pane with a title line above its body.

The title shows the pane's key, and lights up while the pane has the focus.
"""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical

from tui.monitor.messages import TitleClicked
from tui.monitor.panes.lines import LinesView, LineWidget, Part, line


class TitleBar(LinesView):
    """A pane's title line. A click focuses the pane."""

    def __init__(self) -> None:
        super().__init__(focusable=False)

    def on_click(self, event: events.Click) -> None:
        if isinstance(self.parent, Pane):
            self.post_message(TitleClicked(self.parent.number, event.x))


class Pane(Vertical):
    """A titled pane. The key ``number`` focuses the pane. ``about`` describes the pane's figures, next to the title."""

    def __init__(self, number: int, name: str, body: LineWidget, *, id: str, about: str = "") -> None:
        super().__init__(id=id)
        self.number = number
        self.title = name
        self.about = about
        self.body = body
        self.bar = TitleBar()

    def compose(self) -> ComposeResult:
        yield self.bar
        yield self.body

    def on_mount(self) -> None:
        self.set_title()

    def set_title(self, *parts: Part) -> None:
        """Show ``parts`` after the pane's number, or the pane's name if ``parts`` is empty."""
        palette = self.bar.palette
        named: tuple[Part, ...] = ((self.title, palette.title), (f"  {self.about}" if self.about else "", palette.dim))
        self.bar.set_lines([line((f" {self.number} ", palette.dim), *(parts or named))])
