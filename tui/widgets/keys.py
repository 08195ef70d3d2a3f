"""The key bar: what the keys do here, in the order of use, for as many as fit. A click does the same."""

from __future__ import annotations

from textual import events
from textual.strip import Strip

from tui.actions import ACTIONS, Action
from tui.widgets.lines import LinesView, line


class KeyBar(LinesView):
    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, focusable=False)
        self._spans: list[tuple[int, int, Action]] = []

    def on_mount(self) -> None:
        self.show()

    def on_resize(self) -> None:
        self.show()

    def show(self) -> None:
        palette, width = self.palette, self.size.width or self.app.size.width
        strips: list[Strip] = []
        used = 0
        self._spans = []
        hinted = sorted((action for action in ACTIONS if action.hint), key=lambda action: action.hint)
        always = [action for action in hinted if action.name in ("help", "detach")]
        room = width - sum(_width(action) for action in always)
        chosen = []
        for action in hinted:
            if action not in always and used + _width(action) <= room:
                chosen.append(action)
                used += _width(action)
        used = 0
        for action in (*chosen, *always):
            strips.append(line((f" {action.shown_key}", palette.accent), (f" {action.label} ", palette.dim)))
            self._spans.append((used, used + _width(action), action))
            used += _width(action)
        self.set_lines([Strip.join(strips)])

    async def on_click(self, event: events.Click) -> None:
        for start, end, action in self._spans:
            if start <= event.x < end:
                await self.screen.run_action(f"screen.{action.name}" if "." not in action.name else action.name)


def _width(action: Action) -> int:
    return len(action.shown_key) + len(action.label) + 3
