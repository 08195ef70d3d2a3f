"""The charts in the monitor: a separate pane, and a tab of the detail pane."""

from __future__ import annotations

import asyncio
import importlib
import math
import time
from collections.abc import Callable

from textual.strip import Strip

from tui.monitor.panes.lines import LinesView, line
from tui.view.activity import OPENING
from tui.view.model import Model

REDRAW_S = 1.0
"""Minimum seconds between two drawings of the same charts."""
LIBRARY = "plotext"
"""The plotting library, whose import takes 0.1 s of CPU time and must not delay the first paint."""
STEPS = 100
"""Maximum number of steps in the search time. Without new events, the charts change once per step."""


class Charts:
    """The charts of ``model`` for one pane. ``Charts`` calls ``ready`` once it can draw."""

    def __init__(self, model: Model, ready: Callable[[], None]) -> None:
        self.model = model
        self._ready = ready
        self._version: tuple[object, ...] = ()
        self._looked_at = 0.0
        self._loading: asyncio.Task[None] | None = None
        self._loaded = False

    def version(self, problem: str | None) -> tuple[object, ...]:
        """Return the cache key for the charts of ``problem``. The key changes at most once per ``REDRAW_S``."""
        now = time.monotonic()
        beginning = (problem, self._loaded, self.model.is_opening)
        if self._version[:3] != beginning or now - self._looked_at >= REDRAW_S:
            history, seconds = self.model.history, self.model.search_seconds()
            age = seconds // 2.0 ** math.ceil(math.log2(max(1.0, seconds) / STEPS))
            self._looked_at = now
            self._version = (*beginning, id(history), history.changes, age)
        return self._version

    def lines(self, view: LinesView, problem: str | None) -> list[Strip]:
        """Return the charts of ``problem`` for ``view``'s size."""
        if not self._loaded:
            if self._loading is None:
                self._loading = asyncio.create_task(self._load())
            return [line(("Drawing …", view.palette.dim))]
        if self.model.is_opening:
            return [line((OPENING, view.palette.dim))]
        from tui.monitor.panes.charts.lines import chart_lines

        width, height = max(24, view.size.width - 1), view.size.height
        return chart_lines(self.model, problem, view.palette, width, height, ascii_only=view.ascii_only)

    async def _load(self) -> None:
        await asyncio.to_thread(importlib.import_module, LIBRARY)
        self._loaded = True
        self._ready()


class ChartsView(LinesView):
    HELP = (
        "The selected problem's search: each correct kernel is a dot, the line is the best speedup so far, and a star "
        "marks each change of the best kernel. A dot at the bottom edge can be a much slower kernel. Below, charts "
        "show how the devices divided their time and how much the models cost."
    )

    def __init__(self, model: Model, problem: Callable[[], str | None], *, id: str | None = None) -> None:
        """``problem`` returns the problem to show."""
        super().__init__(id=id)
        self._charts = Charts(model, self.show)
        self._problem = problem
        self._key: tuple[object, ...] = ()

    def on_resize(self) -> None:
        self.show()

    def show(self) -> None:
        """Draw the charts if they have changed and the pane is visible."""
        if not self.is_attached or not self.size.height or not self.display:
            return
        problem = self._problem()
        key = (self._charts.version(problem), self.size, self.app.theme)
        if key != self._key:
            self._key = key
            self.set_lines(self._charts.lines(self, problem))
