"""The help screen: the focused pane, its keys, the glyphs, the figures, and all keys of the monitor."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget

from engine.session.records.speedup_text import MARK
from tui.monitor.key_bindings import ACTIONS, GROUP_NAMES, KEY_NAMES, Action
from tui.monitor.panes.detail.text import folded, wrapped
from tui.monitor.panes.lines import LinesView, line
from tui.monitor.panes.tree.filters import HELP as FILTER_HELP
from tui.monitor.theme.palette import Palette
from tui.text.glyphs import GLYPHS

KEY_WIDTH = 16


FIGURES = {
    "speedup": "PyTorch's time in eager mode / the kernel's time",
    "tol.": "tolerance for outputs: kernelbench is 1e-4 in fp32, crfm is 1e-2",
    f"{MARK}1.57x": "uncertain: a 95% interval wider than 20%, or a disturbed machine",
    "change": "speedup relative to the parent or the previous round's best, by verdicts or runoffs",
    "r+4.2%": "a change that a runoff measured side by side; verdicts may contradict it",
    "vs compile": "torch.compile's time / the kernel's time; on a CPU, corrected for changes in machine speed",
    "% SOL": "the device's lower bound on time / the kernel's time; ~: above 100, see Evidence",
    "eager ms": "eager's time, measured alongside the best kernel; the log's 'eager alone' is another measurement",
    "by round": "the best kernel's speedup at the end of each round; later runoffs, verdicts and prunes can change it",
    "round 1  1.90x": "speedup of the round's best kernel by runoffs; another kernel's own verdict can be higher",
    "was 2.31x": "a round's figure at its end, before later runoffs, verdicts or prunes changed it",
}


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss(None)", "close", show=False)
    ]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen LinesView {
        width: 90%; max-width: 96; height: 90%; padding: 1 2; background: $surface; border: round $primary;
        scrollbar-gutter: stable;  /* the text's width is known before its length */
    }
    HelpScreen #leaving { dock: bottom; height: 1; width: 100%; max-width: 100%; padding: 0; border: none; }
    """

    def __init__(self, focused: Widget | None, first: list[Action], *, steers: bool = True) -> None:
        """``first`` lists the focused pane's main actions. ``steers`` says whether steering keys work."""
        super().__init__()
        self._focused, self._first, self._steers = focused, first, steers

    def compose(self) -> ComposeResult:
        yield LinesView(id="help")
        yield LinesView(id="leaving", focusable=False)  # This line covers the key bar, whose keys do nothing now.

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
        """Show the keys for closing help and for scrolling."""
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
    """Return the lines of the help screen, most useful first."""
    own = [binding for binding in getattr(focused, "BINDINGS", ()) if isinstance(binding, Binding)]
    glyphs = [(one.ascii if ascii_only else one.unicode, one) for one in GLYPHS.values()]
    about = getattr(focused, "HELP", None)
    groups = {
        "Most used keys": [_key(action.shown_key, action.help, palette) for action in first],
        "This pane": wrapped(about, palette.text, width) if about is not None else [],
        "Glyphs": [
            line((shown.ljust(KEY_WIDTH), palette.named(one.style)), (one.meaning, palette.text))
            for shown, one in glyphs
        ],
        "Moving in this pane": [_key(_names(binding.key), binding.description, palette) for binding in own],
    }
    for group, title in GROUP_NAMES.items():
        found = [action for action in rest if action.group == group and action not in first]
        groups[title] = [_key(action.shown_key, action.help, palette) for action in found]
    lines: list[Strip] = []
    for title, entries in groups.items():
        if entries:
            lines += [*([line("")] if lines else []), line((title, palette.title)), *entries]
    lines += [line(""), line(("Filter", palette.title)), *wrapped(FILTER_HELP, palette.text, width)]
    lines += [line(""), line(("Figures", palette.title))]
    for name, meaning in FIGURES.items():
        lines.append(line((name.ljust(KEY_WIDTH), palette.accent), (meaning, palette.text)))
    return folded(lines, width)


def _key(keys: str, text: str, palette: Palette) -> Strip:
    return line((keys.ljust(KEY_WIDTH), palette.accent), (text, palette.text))


def _names(keys: str) -> str:
    return " ".join(KEY_NAMES.get(key, key) for key in keys.split(",")[:3])
