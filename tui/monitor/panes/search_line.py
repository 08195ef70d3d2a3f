"""The input line above the key bar for searching a pane's text."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Input

from tui.monitor.panes.lines import LinesView

PLACEHOLDER = "search; enter: keep search (n/N: next/previous match); esc: drop search"


class SearchBar(Input):
    """Search ``view`` while the user types. Enter keeps the search, and esc drops it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "drop", "drop the search", show=False)]
    DEFAULT_CSS = "SearchBar { height: 1; border: none; padding: 0 1; background: $panel; }"

    def __init__(self, view: LinesView, *, id: str) -> None:
        super().__init__(view.searched, placeholder=PLACEHOLDER, compact=True, id=id)
        self.view = view

    def on_mount(self) -> None:
        self.screen.set_focus(self)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.view.search(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.screen.set_focus(self.view)

    def on_blur(self) -> None:
        if self.is_attached:
            self.remove()

    def action_drop(self) -> None:
        self.view.search("")
        self.screen.set_focus(self.view)
