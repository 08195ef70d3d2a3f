"""The last line: what the keys do here, in the order of use, for as many as fit; a click does the same. A word to the
person takes its place for some seconds, so that it covers nothing."""

from __future__ import annotations

import asyncio
import textwrap
import time
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from textual import events
from textual.strip import Strip

from tui.actions import ACTIONS, REPLAY_ACTIONS, Action
from tui.delay import after
from tui.spend import is_spending
from tui.widgets.lines import EMPTY, LinesView, line

if TYPE_CHECKING:
    from tui.screens.monitor import MonitorScreen

Severity = Literal["information", "warning", "error"]
MOST_LINES, MOST_LINES_SHORT = 4, 2
"""Of a word to the person, which takes them from the tree; the second where the terminal is short."""
READ_S = 1.0
"""A key ends a word to the person that has stood this long."""
DETAIL = ("tab(1)", "diff", "calls", "mark", "copy", "edit", "retry", "zoom", "back", "compare")
PANE = ("zoom", "back")
FILTERED = ("next_match(1)", "next_match(-1)", "back", "filter", "open_detail")
ON_A_ROW = {
    "open_detail",
    "seed_idea",
    "seed_kernel",
    "edit",
    "prune",
    "pin",
    "lineage",
    "follow",
    "diff",
    "copy",
    "sort",
}
"""What there is nothing for while the tree is empty."""
ENDED = ("start_engine", "budget", "open_detail", "filter", "lineage", "diff", "copy", "sort", "zoom")


class Hint(NamedTuple):
    """``action``: what a click runs, None for nothing."""

    key: str
    label: str
    action: str | None = None

    @property
    def width(self) -> int:
        return len(self.key) + len(self.label) + 3


FILTERING = (
    Hint("enter", "keep"),
    Hint("esc", "drop"),
    Hint("words", "must all match"),
    Hint("!word", "not"),
    Hint(">1.5 <1", "speedup"),
    Hint("v7 r2 hand", "just that"),
)


class KeyBar(LinesView):
    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, focusable=False)
        self._spans: list[tuple[int, int, str]] = []
        self._word: tuple[str, Severity] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._said_at = 0.0
        self._covered = False

    def on_mount(self) -> None:
        self.show()

    def on_resize(self) -> None:
        self.show()

    def say(self, text: str, severity: Severity, *, seconds: float) -> None:
        """Show ``text``, which must be safe, instead of the keys."""
        if self._timer is not None:
            self._timer.cancel()
        self._word, self._said_at = (text, severity), time.monotonic()
        self._timer = after(self, seconds, self._fall_silent)
        self.show()

    def heed(self) -> None:
        """A key was pressed: what has been said for a moment has been read."""
        if self._word is not None and time.monotonic() - self._said_at > READ_S:
            self._fall_silent()

    def cover(self, covered: bool) -> None:
        """``covered``: a dialog stands over the monitor, whose keys do nothing."""
        self._covered = covered
        self.show()

    def show(self) -> None:
        if not self.is_attached:
            return
        width = self.size.width or self.app.size.width
        if self._covered:
            self._spans = []
        lines = self._said(width) if self._word is not None else [EMPTY if self._covered else self._hints(width)]
        if self.styles.height is None or self.styles.height.value != len(lines):
            self.styles.height = len(lines)
        self.set_lines(lines)

    async def on_click(self, event: events.Click) -> None:
        if self._word is not None:
            self._fall_silent()
            return
        for start, end, action in self._spans:
            if start <= event.x < end:
                await self.screen.run_action(action)

    def _fall_silent(self) -> None:
        self._word = None
        self.show()

    def _said(self, width: int) -> list[Strip]:
        assert self._word is not None
        text, severity = self._word
        palette = self.palette
        style = {"information": palette.bold, "warning": palette.warn, "error": palette.alarm}[severity]
        most = MOST_LINES_SHORT if self.screen.has_class("-short") else MOST_LINES
        pieces = textwrap.wrap(text, max(10, width - 2), max_lines=most, placeholder=" …") or [""]
        return [line((f" {piece}", style)) for piece in pieces]

    def _hints(self, width: int) -> Strip:
        palette = self.palette
        hints, always = hints_of(cast("MonitorScreen", self.screen))
        room = width - sum(hint.width for hint in always)
        chosen: list[Hint] = []
        for hint in hints:
            if hint.width <= room:
                chosen.append(hint)
                room -= hint.width
        strips: list[Strip] = []
        used = 0
        self._spans = []
        for hint in (*chosen, *always):
            strips.append(line((f" {hint.key}", palette.accent), (f" {hint.label} ", palette.dim)))
            if hint.action is not None:
                self._spans.append((used, used + hint.width, hint.action))
            used += hint.width
        return Strip.join(strips)


def hints_of(screen: MonitorScreen) -> tuple[list[Hint], list[Hint]]:
    """What is worth saying where the focus is, the most used first; and what is always said."""
    from tui.widgets.filter import FilterBar

    if isinstance(screen.focused, FilterBar):
        return list(FILTERING), []
    always = [Hint("?", "help", "help"), Hint("q", "detach", "detach")]
    return [_hint(action) for action in used_most(screen)], always


def used_most(screen: MonitorScreen) -> list[Action]:
    """The actions that fit what has the focus and how the search is, the most used first."""
    from tui.widgets.detail.pane import DetailView

    model = screen.model
    if isinstance(screen.focused, DetailView) and screen.focused is not screen.best.body:
        names: tuple[str, ...] = DETAIL
    elif screen.focused is not None and screen.focused is not screen.tree_view:
        names = PANE
    elif screen.tree_rows.view.filter:
        names = FILTERED
    elif model.link.kind == "ended":
        names = ENDED if model.engine != "finished" else ENDED[1:]
    else:
        ranked = sorted((action for action in ACTIONS if action.hint), key=lambda action: action.hint)
        names = tuple(action.name for action in ranked if action.name not in ("help", "detach"))
    known = {action.name: action for action in ACTIONS}
    useless = (
        {action.name for action in ACTIONS if action.group == "steer"} if screen.monitor.why_not_steer() else set()
    )
    if model.link.kind == "ended" and not model.source.read_only:
        useless -= {"start_engine", "budget"}
    if not screen.monitor.history.undoes:
        useless.add("undo")
    if screen.tree_view.row is None:
        useless |= ON_A_ROW
    if not is_spending(model):
        useless.add("calls")
    chosen = [known[name] for name in names if name not in useless]
    return [*(REPLAY_ACTIONS if model.link.kind == "replay" else ()), *chosen]


def _hint(action: Action) -> Hint:
    if action.name == "tab(1)":
        return Hint("[ ]", "tabs", action.name)
    return Hint(action.shown_key, action.label, action.name)
