"""Compare kernels or sessions in columns. For kernels, also show the diff between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import combinations
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.strip import Strip

from engine.session.store import SessionError
from tui.compare.comparison import Comparison
from tui.compare.kernels import compare_kernels, solve_one_problem
from tui.compare.sessions import compare_sessions
from tui.monitor.panes.compare import head_line, table_lines, table_width
from tui.monitor.panes.detail.diff import diff_lines
from tui.monitor.panes.detail.text import wrapped
from tui.monitor.panes.lines import LinesView, Part, line
from tui.text.program import as_typed
from tui.text.sanitize import one_line
from tui.view.model import Model
from tui.view.session_figures import FollowedSession

REFRESH_S = 1.0
DIFF_LEAST = 80
"""Minimum screen width, in cells, for a diff next to the table."""
STACKED_LEAST = 32
"""Minimum screen height, in lines, for the table with the diff below."""
TALL = 50
"""Minimum screen height, in lines, for giving long texts twice as many lines."""

Keys = tuple[tuple[str, str], ...]


class CompareScreen(ModalScreen[None]):
    """A full screen with the conclusion, the column names, and the scrolling rows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,c", "dismiss(None)", "back", show=False),
        Binding("f8", "screenshot", "SVG", show=False),
        Binding("ctrl+z", "app.suspend_process", "suspend", show=False),
    ]
    DEFAULT_CSS = """
    CompareScreen { background: $background; }
    CompareScreen LineWidget { background: $background; color: $foreground; scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0; height: 1fr; }
    CompareScreen #compare-words { height: auto; max-height: 4; background: $panel; padding: 0 1; }
    CompareScreen #compare-heads { height: 1; background: $surface; padding: 0 1; }
    CompareScreen #compare-figures { padding: 0 1; }
    CompareScreen #compare-table { height: 1fr; width: 1fr; }
    CompareScreen #compare-diff { display: none; border-top: solid $primary-muted; padding: 0 1; }
    CompareScreen #compare-keys { height: 1; background: $surface; }
    CompareScreen #compare-body { height: 1fr; layout: vertical; }
    CompareScreen #compare-body.-stacked #compare-diff, CompareScreen #compare-body.-beside #compare-diff {
        display: block; }
    CompareScreen #compare-body.-beside { layout: horizontal; }
    CompareScreen #compare-body.-beside #compare-diff {
        width: 1fr; border-top: none; border-left: solid $primary-muted; }
    CompareScreen #compare-body.-single.-diff #compare-diff { display: block; border-top: none; }
    CompareScreen #compare-body.-single.-diff #compare-table { display: none; }
    """

    KEYS: ClassVar[Keys] = (("j k", "scroll"), ("esc", "back"))

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison
        self._word = ""

    def compose(self) -> ComposeResult:
        self.words = LinesView(id="compare-words", focusable=False)
        self.heads = LinesView(id="compare-heads", focusable=False)
        self.figures = LinesView(id="compare-figures")
        self.keys_line = LinesView(id="compare-keys", focusable=False)
        self.body = Container(id="compare-body")
        yield self.words
        with self.body:
            self.table = Container(self.heads, self.figures, id="compare-table")
            yield self.table
        yield self.keys_line

    def on_mount(self) -> None:
        self.figures.focus()

    def on_resize(self) -> None:
        self.call_after_refresh(self.show)

    def show(self) -> None:
        """Draw everything for the current size."""
        if not self.is_attached:
            return
        palette, ascii_only = self.figures.palette, self.figures.ascii_only
        wide = self.app.size.width
        said: list[Strip] = []
        for place, text in enumerate(self.comparison.words):
            said += wrapped(text, palette.bold if place == 0 else palette.text, wide - 2)
        self.words.set_lines(said)
        width = self.table_room()
        self.heads.set_lines([head_line(self.comparison, palette, width, ascii_only=ascii_only)])
        tall = self.app.size.height >= TALL
        self.figures.set_lines(table_lines(self.comparison, palette, width, ascii_only=ascii_only, tall=tall))
        parts: list[Part] = [(f" {self._word}", palette.bold)] if self._word else []
        for key, label in self.hints():
            parts += [(f" {key}", palette.accent), (f" {label} ", palette.dim)]
        self.keys_line.set_lines([line(*parts)])

    def action_screenshot(self) -> None:
        """Save the screen as SVG and show the file's path."""
        try:
            self._word = f"Saved {one_line(self.app.save_screenshot(), 200)} "
        except OSError as error:
            self._word = f"Cannot save a screenshot: {one_line(str(error), 200)} "
        self.show()

    def table_room(self) -> int:
        """Return the width available for the table, without padding and scrollbar."""
        return self.app.size.width - 3

    def hints(self) -> Sequence[tuple[str, str]]:
        return self.KEYS


class KernelsScreen(CompareScreen):
    """Compare kernels of the session. New verdicts update the screen.

    For kernels of different problems, only D shows the diff, because nearly every line differs.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("D,tab", "turn", "figures or diff", show=False),
        Binding("right_square_bracket", "pair(1)", "diff of the next pair", show=False),
        Binding("left_square_bracket", "pair(-1)", "diff of the previous pair", show=False),
    ]

    def __init__(self, model: Model, names: Sequence[str]) -> None:
        super().__init__(compare_kernels(model.state, names, model.limits.tolerance))
        self._model = model
        self._names = list(names)
        self._pairs = list(combinations(self._names, 2))
        self._alike = solve_one_problem(model.state, names)
        self._pair = 0
        self._seq = model.state.seq

    def compose(self) -> ComposeResult:
        yield from super().compose()
        self.diff = LinesView(id="compare-diff")

    def on_mount(self) -> None:
        self.body.mount(self.diff)
        super().on_mount()
        self.set_interval(REFRESH_S, self._follow)

    def show(self) -> None:
        if not self.is_attached or not self.diff.is_attached:
            return
        needs = table_width(self.comparison, self.app.size.width // 2) + 3
        beside = self._alike and self.app.size.width - needs >= DIFF_LEAST
        stacked = self._alike and not beside and self.app.size.height >= STACKED_LEAST
        self.body.set_class(beside, "-beside").set_class(stacked, "-stacked")
        self.body.set_class(not beside and not stacked, "-single")
        self.table.styles.width = needs if beside else "1fr"
        super().show()
        if stacked:
            lines = len(self.figures.lines) + len(self.heads.lines)
            room = self.app.size.height - len(self.words.lines) - 1
            self.table.styles.height = min(lines, room * 3 // 5)
        else:
            self.table.styles.height = "1fr"
        self.diff.set_lines(self._difference())

    def table_room(self) -> int:
        beside = self.body.has_class("-beside")
        return table_width(self.comparison, self.app.size.width // 2) if beside else super().table_room()

    def hints(self) -> Sequence[tuple[str, str]]:
        shown = self.body.has_class("-diff") and self.body.has_class("-single")
        hints = [("D", "figures" if shown else "diff"), ("j k h l", "scroll")]
        if len(self._pairs) > 1:
            hints.append(("[ ]", "other pairs"))
        return [*hints, ("esc", "back")]

    def action_turn(self) -> None:
        """Switch between the figures and the diff."""
        to_diff = self.focused is not self.diff
        self.body.set_class(to_diff, "-diff")
        (self.diff if to_diff else self.figures).focus()
        self.show()

    def action_pair(self, step: int) -> None:
        self._pair = (self._pair + step) % len(self._pairs)
        self.diff.scroll_to(0, 0, animate=False, immediate=True)
        self.show()

    def _follow(self) -> None:
        state = self._model.state
        if self._seq != state.seq and all(name in state.variants for name in self._names):
            self._seq = state.seq
            self.comparison = compare_kernels(state, self._names, self._model.limits.tolerance)
            self.show()

    def _difference(self) -> list[Strip]:
        palette = self.diff.palette
        old, new = self._pairs[self._pair]
        variants, source = self._model.state.variants, self._model.source
        if old not in variants or new not in variants:  # A replay has jumped back.
            return []
        try:
            before, after = source.text(variants[old].source), source.text(variants[new].source)
        except SessionError as error:
            return wrapped(str(error), palette.warn, self.app.size.width - 3)
        return diff_lines(before, after, old, new, palette)


class SessionsScreen(CompareScreen):
    """Compare sessions. Events of running sessions update the screen. Closing the screen closes ``sessions``."""

    def __init__(self, sessions: Sequence[FollowedSession]) -> None:
        super().__init__(compare_sessions([session.figures for session in sessions]))
        self._sessions = sessions
        self._looking = False

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(REFRESH_S, self._follow)

    def on_unmount(self) -> None:
        for session in self._sessions:
            session.close()

    async def _follow(self) -> None:
        if self._looking:  # On a slow file system, the last refresh may still be running.
            return
        self._looking = True
        try:
            changed = await asyncio.to_thread(lambda: [session.refresh() for session in self._sessions])
        except SessionError as error:
            self._word = one_line(as_typed(str(error)), 200)
            self.show()
        else:
            if any(changed):
                self.comparison = compare_sessions([session.figures for session in self._sessions])
                self.show()
        finally:
            self._looking = False
