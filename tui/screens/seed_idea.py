"""Seed an idea: pick a move that the playbook knows, or say what to try in your own words."""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable
from typing import ClassVar

from msgspec import Struct
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from engine.proposers.protocol import CATEGORY_NAMES, CatalogueEntry
from engine.state import ProblemState
from tui.catalogue import Catalogue
from tui.sanitize import one_line

MOST_COLUMNS, BESIDE_WORDS = 110, 11
"""The dialog's width at most, and what border, paddings and a scrollbar take of it beside a move's description."""
MOST_LINES = 5
"""Of a move's description."""
OTHER_LINES = 14
"""Of the dialog, beside moves and description; two lines of the screen stay free."""


class IdeaWish(Struct, frozen=True):
    """``move``: the name of a catalogue entry, None for prose."""

    text: str
    category: str = "other"
    move: str | None = None


class SeedIdeaScreen(ModalScreen[IdeaWish | None]):
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
        readers: list[str],
    ) -> None:
        """``on``: the kernel that the idea works on, None for the reference. ``catalogue``: the moves for it, or what
        looks for them while the dialog is there already. ``readers``: names of the models that read prose."""
        super().__init__()
        self._problem, self._on, self._readers = problem, on, readers
        self._catalogue = catalogue if isinstance(catalogue, Catalogue) else None
        self._look = catalogue if not isinstance(catalogue, Catalogue) else None

    @property
    def _moves(self) -> tuple[CatalogueEntry, ...]:
        return self._catalogue.moves if self._catalogue is not None else ()

    def compose(self) -> ComposeResult:
        readers = self._readers
        under = f"works on {self._on or 'the reference'}"
        longest = max((len(move.name) for move in self._moves), default=0)
        with Vertical():
            yield Static(f"Seed an idea for {one_line(self._problem.id, 60)}; it {under}", markup=False, id="title")
            if self._moves:
                yield Static("Moves of the playbook, which writes the kernels:", markup=False, classes="label")
                yield OptionList(*(Option(_entry(move, longest)) for move in self._moves), markup=False, id="moves")
                yield Static("", markup=False, id="about")
            if self._catalogue is None:
                yield Static("Looking for moves of the playbook that are new for it …", markup=False, classes="label")
            elif self._catalogue.early:
                words = f"{self._on} is not judged yet: which moves of the playbook are new for it is known then."
                yield Static(words, markup=False, classes="label")
            elif spent := self._catalogue.spent:
                words = (
                    f"{len(spent)} tried on it, or not for it"
                    if self._moves
                    else "Nothing of the playbook is new for it"
                )
                yield Static(f"{words}: {', '.join(spent)}", markup=False, id="spent")
            if readers:
                label = f"In your own words; {', '.join(readers)} writes the kernels:"
            else:
                label = "In your own words; no model here reads them, so $EDITOR opens:"
            yield Static(one_line(label, 300), markup=False, classes="label")
            yield Input(placeholder="what should be tried?", id="prose", compact=True, select_on_focus=False)
            moves = "up/down: choose   tab: your own words   " if self._moves else ""
            yield Static(f"enter: seed   {moves}esc: cancel", markup=False, id="hint")

    def on_mount(self) -> None:
        self.query_one("#moves" if self._moves else "#prose").focus()
        if (look := self._look) is not None:
            self.call_after_refresh(lambda: self.run_worker(self._show_moves(look)))

    async def _show_moves(self, look: Callable[[], Awaitable[Catalogue]]) -> None:
        """Once they are known; what a person has begun to write stays, and so does the focus then."""
        self._catalogue = await look()
        begun = self.query_one("#prose", Input).value
        await self.recompose()
        prose = self.query_one("#prose", Input)
        prose.value, prose.cursor_position = begun, len(begun)
        (prose if begun or not self._moves else self.query_one("#moves")).focus()
        self.on_resize()

    def on_resize(self) -> None:
        """As many moves as there is room for beside the rest, of which the longest description is seen whole."""
        if self._catalogue is None or not self._moves:
            return
        width = min(MOST_COLUMNS, self.app.size.width * 9 // 10) - BESIDE_WORDS
        described = max(len(textwrap.wrap(one_line(move.text, 600), max(20, width))) for move in self._moves)
        self.query_one("#about").styles.height = min(described, MOST_LINES)
        room = self.app.size.height - OTHER_LINES - bool(self._catalogue.spent) - min(described, MOST_LINES)
        self.query_one("#moves").styles.height = min(len(self._moves), max(3, room))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if text := event.value.strip():
            self.dismiss(IdeaWish(text))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one("#about", Static).update(one_line(self._moves[event.option_index].text, 600))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        move = self._moves[event.option_index]
        self.dismiss(IdeaWish(self.query_one("#prose", Input).value.strip(), move.category, move.name))


def _entry(move: CatalogueEntry, longest: int) -> Text:
    category = CATEGORY_NAMES.get(move.category, move.category)
    return Text.assemble(f"{move.name:<{longest}}  ", (category, "dim"), no_wrap=True)
