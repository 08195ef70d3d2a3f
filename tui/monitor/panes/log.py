"""The log pane: the newest lines of the engine's log. A small window shows only one line."""

from __future__ import annotations

import time
from itertools import islice

from textual.strip import Strip

from tui.monitor.panes.detail.text import folded
from tui.monitor.panes.lines import LinesView, line
from tui.monitor.theme.palette import Palette
from tui.text.program import as_typed
from tui.text.sanitize import MAX_LINE
from tui.text.story import engine_died
from tui.view.model import Model

WRAP_FROM = 8
"""Minimum pane height, in lines, for wrapping long lines. A shorter pane would show too few log lines."""


class LogPane(LinesView):
    ellipsis = True
    HELP = (
        "The engine's log, which follows new lines until you scroll up. Press h and l to scroll long lines "
        "sideways, + to zoom the pane and wrap its lines, and / to search."
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
        if self.has_focus:  # Only scrolling by the user stops the pane from following new lines.
            self._follows = self.scroll_offset.y >= self.max_scroll_y

    def _to_end(self) -> None:
        if self._follows and not self.place[1]:  # During a text search, the user is reading the matches.
            self.call_after_refresh(self.scroll_end, animate=False, immediate=True)


def log_lines(model: Model, palette: Palette, count: int = 500) -> list[Strip]:
    styles = {"info": palette.text, "good": palette.good, "warning": palette.warn, "error": palette.bad}
    told = list(islice(model.story.lines, max(0, len(model.story.lines) - count), None))
    if model.engine == "died" and model.state.engine is not None:
        # Only the next engine could record this event.
        told.append(engine_died(model.clock(), model.state.engine.pid))
    recorded_at = model.recorded_at or float
    return [
        line(
            (time.strftime(" %H:%M:%S ", time.localtime(recorded_at(one.time))), palette.dim),
            (as_typed(one.text[:MAX_LINE]).replace("\n", " "), styles[one.level]),
        )
        for one in told
    ]
