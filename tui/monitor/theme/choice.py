"""A dialog that lists the themes and shows the highlighted one at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static


class ThemeScreen(ModalScreen[str | None]):
    """A list of themes. The dialog returns the chosen theme, or None if the user keeps the current one."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,T", "dismiss(None)", "back", show=False)]
    DEFAULT_CSS = """
    ThemeScreen { align: right middle; background: transparent; }
    ThemeScreen > Vertical {
        width: 34; height: auto; max-height: 90%; padding: 0 1; background: $surface; border: round $primary;
    }
    ThemeScreen OptionList { height: auto; max-height: 12; }
    ThemeScreen #theme-keys { height: auto; color: $text-accent; }
    """

    def __init__(self, themes: Sequence[str], current: str, preview: Callable[[str], None], *, saves: str) -> None:
        """``preview`` shows a theme. ``saves`` says what Enter does."""
        super().__init__()
        self._themes, self._current, self._preview = themes, current, preview
        self._keys = f"enter: {saves}\nesc: keep {current}"

    def compose(self) -> ComposeResult:
        with Vertical():
            yield OptionList(*self._themes, compact=True)
            yield Static(self._keys, markup=False, id="theme-keys")

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.highlighted = self._themes.index(self._current) if self._current in self._themes else 0
        options.focus()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self._preview(self._themes[event.option_index])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._themes[event.option_index])
