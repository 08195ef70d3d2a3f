"""Help: what the focused pane is, its keys, every key of the monitor, and what the glyphs mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget

from tui.actions import ACTIONS, GROUP_NAMES, KEY_NAMES, Group
from tui.filters import HELP as FILTER_HELP
from tui.glyphs import GLYPHS
from tui.palette import Palette
from tui.widgets.lines import LinesView, line

KEY_WIDTH = 18


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss(None)", "close", show=False)
    ]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen LinesView {
        width: 90%; max-width: 96; height: 90%; padding: 1 2; background: $surface; border: round $primary;
    }
    """

    def __init__(self, focused: Widget | None) -> None:
        super().__init__()
        self._focused = focused

    def compose(self) -> ComposeResult:
        yield LinesView(id="help")

    def on_mount(self) -> None:
        view = self.query_one("#help", LinesView)
        view.set_lines(help_lines(self._focused, view.palette, ascii_only=view.ascii_only))
        view.focus()


def help_lines(focused: Widget | None, palette: Palette, *, ascii_only: bool) -> list[Strip]:
    lines: list[Strip] = []
    if (about := getattr(focused, "HELP", None)) is not None:
        lines += [line((about, palette.bold)), line("")]
        own = [binding for binding in getattr(focused, "BINDINGS", ()) if isinstance(binding, Binding)]
        lines += [_key(_names(binding.key), binding.description, palette) for binding in own]
        lines.append(line(""))
    for group in ("look", "steer", "app"):
        lines.append(line((GROUP_NAMES[_group(group)], palette.title)))
        lines += [_key(action.shown_key, action.help, palette) for action in ACTIONS if action.group == group]
        lines.append(line(""))
    lines += [line(("Filter", palette.title)), line((FILTER_HELP, palette.text)), line("")]
    lines.append(line(("Glyphs", palette.title)))
    for one in GLYPHS.values():
        shown = one.ascii if ascii_only else one.unicode
        lines.append(line((shown.ljust(KEY_WIDTH), palette.named(one.style)), (one.meaning, palette.text)))
    lines += [line(""), line(("esc closes this", palette.dim))]
    return lines


def _key(keys: str, text: str, palette: Palette) -> Strip:
    return line((keys.ljust(KEY_WIDTH), palette.accent), (text, palette.text))


def _names(keys: str) -> str:
    names = {"asterisk": "*", "less_than_sign": "<", "greater_than_sign": ">", **KEY_NAMES}
    return " ".join(names.get(key, key) for key in keys.split(",")[:3])


def _group(name: str) -> Group:
    return "look" if name == "look" else ("steer" if name == "steer" else "app")
