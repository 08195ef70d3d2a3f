"""A pane: one title line over one body. The title says which key focuses it and lights up while it has the focus."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from tui.widgets.lines import LinesView, LineWidget, Part, line


class TitleBar(LinesView):
    """One line; a click on it is a click on the pane."""

    class Clicked(Message):
        def __init__(self, x: int, pane: Pane) -> None:
            super().__init__()
            self.x = x
            self.pane = pane

    def __init__(self) -> None:
        super().__init__(focusable=False)

    def on_click(self, event: events.Click) -> None:
        if isinstance(self.parent, Pane):
            self.post_message(self.Clicked(event.x, self.parent))


class Pane(Vertical):
    """``number`` is the key that focuses it. ``about``: what its figures are, beside its name."""

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
        """What stands after the pane's number; its name if nothing is given."""
        palette = self.bar.palette
        named: tuple[Part, ...] = ((self.title, palette.title), (f"  {self.about}" if self.about else "", palette.dim))
        self.bar.set_lines([line((f" {self.number} ", palette.dim), *(parts or named))])
