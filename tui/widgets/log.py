"""What the engine says: one line in a small window, the latest lines in a larger one."""

from __future__ import annotations

import time
from itertools import islice

from textual.strip import Strip

from tui.model import Model
from tui.palette import Palette
from tui.sanitize import MAX_LINE
from tui.widgets.detail.text import folded
from tui.widgets.lines import LinesView, line

WRAP_FROM = 8
"""Height from which long lines are broken: below, that would leave room for too few of them."""


class LogPane(LinesView):
    ellipsis = True
    HELP = (
        "The engine's log. At the end it follows; scroll up to read. Long lines scroll sideways (h l); "
        "where the pane is zoomed (+) they are broken."
    )

    _follows = True
    _model: Model | None = None

    def show(self, model: Model) -> None:
        self._model = model
        lines = log_lines(model, self.palette)
        if self.size.height >= WRAP_FROM:
            lines = folded(lines, self.scrollable_content_region.width - 1)
        self.set_lines(lines)
        self._to_end()

    def on_resize(self) -> None:
        if self._model is not None:
            self.show(self._model)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self.has_focus:  # a person scrolls; what a resize or new lines do to the place is no wish
            self._follows = self.scroll_offset.y >= self.max_scroll_y

    def _to_end(self) -> None:
        if self._follows:
            self.call_after_refresh(self.scroll_end, animate=False, immediate=True)


def log_lines(model: Model, palette: Palette, count: int = 500) -> list[Strip]:
    styles = {"info": palette.text, "good": palette.good, "warning": palette.warn, "error": palette.bad}
    told = model.story.lines
    recorded_at = model.recorded_at or float
    return [
        line(
            (time.strftime(" %H:%M:%S ", time.localtime(recorded_at(one.time))), palette.dim),
            (one.text[:MAX_LINE].replace("\n", " "), styles[one.level]),
        )
        for one in islice(told, max(0, len(told) - count), None)
    ]
