"""Seed an idea: choose a playbook transformation, or describe the idea in words."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Awaitable, Callable
from typing import ClassVar

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from engine.proposers.categories import CATEGORY_NAMES
from engine.proposers.protocol import CatalogueEntry
from engine.session.state.session_state import ProblemState
from tui.monitor.steering.seedable import Catalogue
from tui.text.format import transformation_label
from tui.text.sanitize import one_line

MOST_COLUMNS, BESIDE_WORDS = 110, 11
"""The dialog's maximum width, and the width of its borders, padding and scrollbar, in cells."""
MOST_LINES = 5
"""Maximum number of lines for a transformation's description."""
_LIST_KEYS = "enter: seed   up/down: choose   type: your own idea   esc: cancel"
_TEXT_KEYS = "enter: seed your idea   up/down: transformations   esc: cancel"
OTHER_LINES = 14
"""Number of screen lines outside the list and the description, including two that stay empty."""


class IdeaRequest(Struct, frozen=True):
    """The user's idea. ``transformation`` is a transformation's name, or None for prose."""

    text: str
    category: str = "other"
    transformation: str | None = None


class SeedIdeaScreen(ModalScreen[IdeaRequest | None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "cancel", show=False),
        Binding("tab", "app.focus_next", "next", show=False),
    ]
    DEFAULT_CSS = """
    SeedIdeaScreen { align: center middle; }
    SeedIdeaScreen > Vertical {
        width: 90%; max-width: 110; height: auto; max-height: 100%; padding: 0 2; background: $surface;
        border: round $primary;
    }
    SeedIdeaScreen OptionList { height: 3; background: $surface; border: none; padding: 0; }
    SeedIdeaScreen OptionList:focus { border: none; }
    SeedIdeaScreen Static { height: auto; }
    SeedIdeaScreen #title { text-style: bold; }
    SeedIdeaScreen .label { margin-top: 1; color: $text-primary; }
    SeedIdeaScreen #about { color: $text-muted; height: 3; margin-top: 1; padding: 0 2; }
    SeedIdeaScreen #spent { color: $text-muted; height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    SeedIdeaScreen Input { background: $panel; }
    SeedIdeaScreen #hint { color: $text-muted; margin-top: 1; }
    """

    def __init__(
        self,
        problem: ProblemState,
        on: str | None,
        catalogue: Catalogue | Callable[[], Awaitable[Catalogue]],
        *,
        may_be_read: bool = True,
    ) -> None:
        """Create the dialog.

        The idea starts from the kernel ``on``, or from the reference if ``on`` is None. ``catalogue`` contains the
        kernel's transformations, or is a function that finds them while the dialog is open. ``may_be_read`` is true if
        the session may have a model that reads prose.
        """
        super().__init__()
        self._problem, self._on, self._may_be_read = problem, on, may_be_read
        self._catalogue = catalogue if isinstance(catalogue, Catalogue) else None
        self._look = catalogue if not isinstance(catalogue, Catalogue) else None

    @property
    def _entries(self) -> tuple[CatalogueEntry, ...]:
        return self._catalogue.transformations if self._catalogue is not None else ()

    @property
    def _width(self) -> int:
        """Width in cells that each text of the dialog has."""
        return max(20, min(MOST_COLUMNS, self.app.size.width * 9 // 10) - BESIDE_WORDS)

    def compose(self) -> ComposeResult:
        start = self._on or "the reference"
        longest = max((len(transformation_label(entry.name)) for entry in self._entries), default=0)
        with Vertical():
            yield Static(
                f"Seed an idea for {one_line(self._problem.id, 60)}, starting from {start}", markup=False, id="title"
            )
            if self._entries:
                yield Static(
                    "Playbook transformations (the playbook writes the kernels):", markup=False, classes="label"
                )
                yield OptionList(
                    *(Option(_option(entry, longest)) for entry in self._entries),
                    markup=False,
                    id="transformations",
                )
                yield Static("", markup=False, id="about")
            if self._catalogue is None:
                yield Static("Looking for untried playbook transformations …", markup=False, classes="label")
            elif self._catalogue.early:
                words = f"{self._on} has no verdict yet. For its transformations, reopen this dialog after the verdict."
                yield Static(words, markup=False, classes="label")
            elif self._catalogue.spent:
                yield Static(spent_words(self._catalogue, self._width), markup=False, id="spent")
            readers = self._catalogue.readers if self._catalogue is not None else ()
            if readers:
                label = f"In your own words, for {', '.join(readers)}:"
            elif self._catalogue is None and self._may_be_read:
                label = "In your own words:"
            else:
                label = "In your own words. No model writes the kernel: enter opens $EDITOR, where you write it."
            yield Static(one_line(label, 300), markup=False, classes="label")
            yield Input(placeholder="what to try", id="prose", compact=True, select_on_focus=False)
            yield Static(_LIST_KEYS if self._entries else "enter: seed   esc: cancel", markup=False, id="hint")

    def on_mount(self) -> None:
        self.query_one("#transformations" if self._entries else "#prose").focus()
        if (look := self._look) is not None:
            self.call_after_refresh(lambda: self.run_worker(self._show_transformations(look)))

    async def _show_transformations(self, look: Callable[[], Awaitable[Catalogue]]) -> None:
        """Show the transformations once they are known. Keep the user's text and the focus."""
        self._catalogue = await look()
        with contextlib.suppress(NoMatches):  # The user has closed the dialog in the meantime.
            begun = self.query_one("#prose", Input).value
            await self.recompose()
            prose = self.query_one("#prose", Input)
            prose.value, prose.cursor_position = begun, len(begun)
            (prose if begun or not self._entries else self.query_one("#transformations")).focus()
            self.on_resize()

    def on_key(self, event: Key) -> None:
        """Put what the user types into the text field, even while the list has the focus. From the text field, the up
        and down keys move the focus to the list.
        """
        prose = self.query_one("#prose", Input)
        if event.key in ("up", "down") and prose.has_focus and self._entries:
            self.query_one("#transformations").focus()
            event.stop()
        if event.character is not None and event.is_printable and not prose.has_focus:
            prose.focus()
            prose.insert_text_at_cursor(event.character)
            event.stop()

    def on_descendant_focus(self) -> None:
        """Say what the Enter key seeds."""
        if self._entries:
            hint = _TEXT_KEYS if self.query_one("#prose").has_focus else _LIST_KEYS
            self.query_one("#hint", Static).update(hint)

    def on_resize(self) -> None:
        """Fit the list to the screen, so that the longest description fits in full."""
        if self._catalogue is None:
            return
        for spent in self.query("#spent").results(Static):
            spent.update(spent_words(self._catalogue, self._width))
        if not self._entries:
            return
        described = max(len(textwrap.wrap(one_line(entry.text, 600), self._width)) for entry in self._entries)
        self.query_one("#about").styles.height = min(described, MOST_LINES)
        room = self.app.size.height - OTHER_LINES - bool(self._catalogue.spent) - min(described, MOST_LINES)
        self.query_one("#transformations").styles.height = min(len(self._entries), max(3, room))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if text := event.value.strip():
            self.dismiss(IdeaRequest(text))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one("#about", Static).update(one_line(self._entries[event.option_index].text, 600))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        entry = self._entries[event.option_index]
        self.dismiss(IdeaRequest(self.query_one("#prose", Input).value.strip(), entry.category, entry.name))


def spent_words(catalogue: Catalogue, width: int) -> str:
    """Name the transformations that yield no new kernel. If not all fit in ``width`` cells, count the others."""
    names = list(map(transformation_label, catalogue.spent))
    words = (
        "Tried, or not applicable: " if catalogue.transformations else "None left to try. Tried, or not applicable: "
    )
    for shown in range(len(names), 0, -1):
        more = f" and {len(names) - shown} more" if shown < len(names) else ""
        if cell_len(said := f"{words}{', '.join(names[:shown])}{more}") <= width:
            return said
    return f"{words}{len(names)}"


def _option(entry: CatalogueEntry, longest: int) -> Text:
    category = CATEGORY_NAMES.get(entry.category, entry.category)
    return Text.assemble(f"{transformation_label(entry.name):<{longest}}  ", (category, "dim"), no_wrap=True)
