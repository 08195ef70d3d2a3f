"""The tree filter's input line, above the key bar."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Input

from tui.monitor.messages import FilterEdited
from tui.monitor.panes.tree.filters import HELP, SHORT_HELP


class FilterBar(Input):
    """Filter the tree while the user types. Enter keeps the filter, and esc drops it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "drop", "drop the filter", show=False)]
    DEFAULT_CSS = "FilterBar { height: 1; border: none; padding: 0 1; }"

    def __init__(self, value: str, *, id: str) -> None:
        super().__init__(value, placeholder=f"filter: {HELP}", compact=True, id=id)

    def on_mount(self) -> None:
        room = self.app.size.width - 4
        hints = (f"filter: {HELP}", f"filter: {SHORT_HELP}")
        self.placeholder = next((one for one in hints if len(one) <= room), hints[-1])
        self.add_class("-open")
        self.screen.set_focus(self)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.screen.post_message(FilterEdited(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._leave()

    def on_blur(self) -> None:
        if self.is_attached:
            self.remove()

    def action_drop(self) -> None:
        self.screen.post_message(FilterEdited("", dropped=True))
        self._leave()

    def _leave(self) -> None:
        self.screen.set_focus(self.screen.query_one("#tree"))
