"""The key bar: hints for the keys that work here, most used first. Clicking a hint does the same as pressing its key.

A notice replaces the hints for a few seconds, so it does not cover any pane. The help hint stays.
"""

from __future__ import annotations

import asyncio
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from rich.cells import cell_len
from textual import events
from textual.strip import Strip

from tui.monitor.delay import after
from tui.monitor.key_bindings import ACTIONS, REPLAY_ACTIONS, Action
from tui.monitor.panes.lines import EMPTY, LinesView, line
from tui.view.row import Kind

Severity = Literal["information", "warning", "error"]
MOST_LINES, MOST_LINES_SHORT = 4, 2
"""Maximum number of lines for a notice, on a tall and on a short terminal."""
READ_S = 1.0
"""Minimum age of a notice, in seconds, before a key press dismisses it."""
DETAIL = ("tab(1)", "diff", "filter", "calls", "mark", "copy", "edit", "retry", "zoom", "back", "compare")
ALWAYS = ("help", "detach")
HELP_COMMAND = next(action.command for action in ACTIONS if action.name == "help")
MAIN = 8
"""Number of hints that should fit with their full labels. If they do not fit, all hints use their short labels."""
PANE = ("zoom", "back")
PROBLEMS = ("seed_idea", "seed_kernel", "zoom", "back")
UNZOOM = "unzoom"
SEARCHABLE = ("filter", "zoom", "back")
SEARCHED = ("next_match(1)", "next_match(-1)", "back", "filter")
FILTERED = (
    *("next_match(1)", "next_match(-1)", "back", "open_detail", "seed_idea", "edit", "prune", "filter"),
    *("seed_kernel", "pause_search", "pin"),
)
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
"""Actions that need a selected row of the tree."""
NOT_ON: dict[Kind | None, set[str]] = {
    None: ON_A_ROW,
    "problem": {"pin", "retry"},
    "round": {"prune", "pin", "retry"},
    "idea": {"retry"},
}
"""Actions that do nothing, by the kind of the selected row (None if no row is selected)."""
ENDED = ("start_engine", "budget", "open_detail", "filter", "lineage", "diff", "copy", "sort", "zoom")


class Where(Struct, frozen=True):
    """The state that decides which keys get a hint.

    ``focus`` is the kind of pane that has the focus. In a "text" pane, ``/`` searches the text. ``searched`` is true if
    that pane has an active text search. ``zoomed`` is true if one pane covers the others. ``row`` is the kind of the
    selected row, or None if no row is selected. ``steers`` is true if a request would reach an engine. ``resumable`` is
    true if this monitor may start an engine.
    """

    focus: Literal["tree", "filter", "detail", "text", "problems", "pane"] = "tree"
    searched: bool = False
    zoomed: bool = False
    filtered: bool = False
    ended: bool = False
    resumable: bool = False
    finished: bool = False
    replay: bool = False
    steers: bool = True
    undoes: bool = False
    row: Kind | None = "variant"
    spending: bool = False


class Hint(NamedTuple):
    """A key with its label. ``action`` is the action that a click runs, if any."""

    key: str
    label: str
    action: str | None = None
    short: str = ""

    @property
    def width(self) -> int:
        return len(self.key) + len(self.label) + 3

    @property
    def shortened(self) -> Hint:
        return self._replace(label=self.short or self.label)


FILTERING = (
    Hint("enter", "keep"),
    Hint("esc", "drop"),
    Hint("words", "must all match"),
    Hint("!word", "not"),
    Hint(">1.5 <1", "speedup"),
    Hint("v7 r2 hand", "exactly that"),
)
SEARCHING = (Hint("enter", "search"), Hint("esc", "leave"))


class KeyBar(LinesView):
    """The last line of the screen. Before each redraw, the bar calls ``where`` for the state that selects the hints."""

    def __init__(self, where: Callable[[], Where], *, id: str | None = None) -> None:
        super().__init__(id=id, focusable=False)
        self._where = where
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
        """Show a notice instead of the hints. ``text`` must not contain control characters."""
        if self._timer is not None:
            self._timer.cancel()
        self._word, self._said_at = (text, severity), time.monotonic()
        self._timer = after(self, seconds, self._fall_silent)
        self.show()

    def heed(self) -> None:
        """Dismiss a notice on a key press, if the user has had time to read it."""
        if self._word is not None and time.monotonic() - self._said_at > READ_S:
            self._fall_silent()

    def cover(self, covered: bool) -> None:
        """Hide the hints while a dialog is open (``covered``), since the main screen's keys do nothing then."""
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
        for start, end, action in self._spans:
            if start <= event.x < end and event.y == len(self.lines) - 1:
                await self.screen.run_action(action)
                return
        if self._word is not None:
            self._fall_silent()

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
        strips = [line((f" {piece}", style)) for piece in pieces]
        self._spans = []
        helped = [hint for hint in hints_of(self._where())[1] if hint.action == HELP_COMMAND]
        start = width - sum(hint.width for hint in helped)
        if helped and not self._covered and cell_len(strips[-1].text) < start:
            strips[-1] = Strip.join([strips[-1].extend_cell_length(start), self._drawn(helped, start)])
        return strips

    def _hints(self, width: int) -> Strip:
        hints, always = hints_of(self._where())
        room = width - sum(hint.width for hint in always)
        if sum(hint.width for hint in hints[:MAIN]) > room:
            hints = [hint.shortened for hint in hints]
        chosen: list[Hint] = []
        for hint in hints:
            if hint.width <= room:
                chosen.append(hint)
                room -= hint.width
        self._spans = []
        return self._drawn([*chosen, *always], 0)

    def _drawn(self, hints: Sequence[Hint], start: int) -> Strip:
        """Draw hints, starting at column ``start``, and make them clickable."""
        palette, strips = self.palette, []
        for hint in hints:
            strips.append(line((f" {hint.key}", palette.accent), (f" {hint.label} ", palette.dim)))
            if hint.action is not None:
                self._spans.append((start, start + hint.width, hint.action))
            start += hint.width
        return Strip.join(strips)


def hints_of(where: Where) -> tuple[list[Hint], list[Hint]]:
    """Return the hints for ``where``, most used first, and the hints that always appear."""
    if where.focus == "filter":
        return list(SEARCHING if where.searched else FILTERING), [Hint("f1", "help", HELP_COMMAND)]
    always = [_hint(action) for action in ACTIONS if action.name in ALWAYS]
    hints = [_hint(action, searches=where.focus in ("detail", "text")) for action in used_most(where)]
    if where.zoomed and not where.searched:
        back = UNZOOM if where.focus == "tree" else "back to the tree"
        labels = {"back": back, "zoom": UNZOOM}
        hints = [hint._replace(label=labels.get(hint.action or "", hint.label)) for hint in hints]
    return hints, always


def used_most(where: Where) -> list[Action]:
    """Return the actions that apply to the focused pane and the search's state, most used first."""
    if where.focus != "tree" and where.searched:
        names: tuple[str, ...] = SEARCHED
    elif where.focus == "detail":
        names = DETAIL
    elif where.focus == "problems":
        names = PROBLEMS
    elif where.focus in ("pane", "text"):
        names = PANE if where.focus == "pane" else SEARCHABLE
    elif where.filtered:
        names = FILTERED
    elif where.ended:
        names = ENDED if not where.finished else ENDED[1:]
    else:
        ranked = sorted((action for action in ACTIONS if action.hint), key=lambda action: action.hint)
        names = tuple(action.name for action in ranked if action.name not in ALWAYS)
    if where.zoomed and not where.searched:
        names = ("back", *(name for name in names if name != "back"))
    known = {action.name: action for action in ACTIONS}
    useless = set() if where.steers else {action.name for action in ACTIONS if action.group == "steer"}
    if where.resumable:
        useless -= {"start_engine", "budget"}
    if not where.undoes:
        useless.add("undo")
    useless |= NOT_ON.get(where.row, set())
    if not where.spending:
        useless.add("calls")
    chosen = [known[name] for name in names if name not in useless]
    return [*(REPLAY_ACTIONS if where.replay else ()), *chosen]


def _hint(action: Action, *, searches: bool = False) -> Hint:
    """Return an action's hint. ``searches`` is true if ``/`` searches text instead of filtering the tree."""
    if action.name == "tab(1)":
        return Hint("[ ]", "tabs", action.command)
    if action.name == "filter" and searches:
        return Hint(action.shown_key, "search", action.command)
    return Hint(action.shown_key, action.label, action.command, action.short_label)
