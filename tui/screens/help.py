"""Help: what the focused pane is, its keys, what the glyphs mean, and every key of the monitor."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget

from engine.factor import MARK
from tui.actions import ACTIONS, GROUP_NAMES, KEY_NAMES, Action
from tui.filters import HELP as FILTER_HELP
from tui.glyphs import GLYPHS
from tui.palette import Palette
from tui.widgets.detail.text import folded, wrapped
from tui.widgets.lines import LinesView, line

KEY_WIDTH = 16


FIGURES = {
    "x eager": "PyTorch's time in eager mode / the kernel's: the median of pairs",
    f"{MARK}1.57x": "its 95 % interval is wider than a fifth of it",
    "change": "of the factor, against the kernel it was derived from, each of its minute",
    "x compile": "torch.compile's time / the kernel's, each of its minute",
    "floor": "the least time the device could take / the kernel's",
    "by round": "best factor at the end of each round",
}


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss(None)", "close", show=False)
    ]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen LinesView {
        width: 90%; max-width: 96; height: 90%; padding: 1 2; background: $surface; border: round $primary;
    }
    HelpScreen #leaving { dock: bottom; height: 1; width: 100%; max-width: 100%; padding: 0; border: none; }
    """

    def __init__(self, focused: Widget | None, first: list[Action], *, steers: bool = True) -> None:
        """``first``: what is used most where the focus is. ``steers``: whether steering keys do anything here."""
        super().__init__()
        self._focused, self._first, self._steers = focused, first, steers

    def compose(self) -> ComposeResult:
        yield LinesView(id="help")
        yield LinesView(id="leaving", focusable=False)  # over the monitor's keys, which do nothing here

    def on_mount(self) -> None:
        view = self.query_one("#help", LinesView)
        view.focus()
        self.watch(view, "scroll_y", self._show_leaving, init=False)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        view = self.query_one("#help", LinesView)
        rest = [action for action in ACTIONS if self._steers or action.group != "steer"]
        width = view.scrollable_content_region.width
        view.set_lines(help_lines(self._focused, self._first, rest, view.palette, width, ascii_only=view.ascii_only))
        self._show_leaving()

    def _show_leaving(self) -> None:
        """How to leave, and whether there is more to see."""
        view, leaving = self.query_one("#help", LinesView), self.query_one("#leaving", LinesView)
        down, up = ("j", "k") if view.ascii_only else ("↓", "↑")
        below, above = view.scroll_y < view.max_scroll_y, view.scroll_y > 0
        keys = [("esc", "close"), *([(down, "more")] if below else []), *([(up, "back")] if above else [])]
        parts = [
            part for key, does in keys for part in ((f" {key}", view.palette.accent), (f" {does} ", view.palette.dim))
        ]
        leaving.set_lines([line(*parts)])


def help_lines(
    focused: Widget | None,
    first: list[Action],
    rest: list[Action],
    palette: Palette,
    width: int,
    *,
    ascii_only: bool,
) -> list[Strip]:
    """What the focused pane is, the keys that are used most in it, the glyphs, how to move in it, all other keys."""
    lines: list[Strip] = []
    if (about := getattr(focused, "HELP", None)) is not None:
        lines += wrapped(about, palette.bold, width)
    own = [binding for binding in getattr(focused, "BINDINGS", ()) if isinstance(binding, Binding)]
    glyphs = [(one.ascii if ascii_only else one.unicode, one) for one in GLYPHS.values()]
    groups = {
        "Used most here": [_key(action.shown_key, action.help, palette) for action in first],
        "Glyphs": [
            line((shown.ljust(KEY_WIDTH), palette.named(one.style)), (one.meaning, palette.text))
            for shown, one in glyphs
        ],
        "Moving in this pane": [_key(_names(binding.key), binding.description, palette) for binding in own],
    }
    for group, title in GROUP_NAMES.items():
        found = [action for action in rest if action.group == group and action not in first]
        groups[title] = [_key(action.shown_key, action.help, palette) for action in found]
    for title, entries in groups.items():
        if entries:
            lines += [line(""), line((title, palette.title)), *entries]
    lines += [line(""), line(("Filter", palette.title)), *wrapped(FILTER_HELP, palette.text, width)]
    lines += [line(""), line(("Figures", palette.title))]
    for name, meaning in FIGURES.items():
        lines.append(line((name.ljust(KEY_WIDTH), palette.accent), (meaning, palette.text)))
    return folded(lines, width)


def _key(keys: str, text: str, palette: Palette) -> Strip:
    return line((keys.ljust(KEY_WIDTH), palette.accent), (text, palette.text))


def _names(keys: str) -> str:
    return " ".join(KEY_NAMES.get(key, key) for key in keys.split(",")[:3])
