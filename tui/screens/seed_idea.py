"""Seed an idea: pick a move that the playbook knows, or write what to try in your own words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from engine.proposers.protocol import CATEGORY_NAMES, CatalogueEntry
from engine.state import ProblemState
from tui.catalogue import catalogue_of
from tui.model import Model
from tui.sanitize import one_line


@dataclass(frozen=True, slots=True)
class IdeaWish:
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
        width: 90%; max-width: 110; height: auto; max-height: 90%; padding: 1 2; background: $surface;
        border: round $primary;
    }
    SeedIdeaScreen OptionList { height: auto; max-height: 12; margin: 1 0; background: $surface; border: none; }
    SeedIdeaScreen Static { height: auto; }
    SeedIdeaScreen #hint { color: $text-muted; margin-top: 1; }
    """

    def __init__(self, model: Model, problem: ProblemState, parent: str | None) -> None:
        super().__init__()
        self._model, self._problem, self._parent_kernel = model, problem, parent
        self._moves: tuple[CatalogueEntry, ...] = ()

    def compose(self) -> ComposeResult:
        self._moves = catalogue_of(self._model.state, self._problem)
        under = f"works on {self._parent_kernel}" if self._parent_kernel else "works on the best kernel"
        with Vertical():
            yield Static(f"Seed an idea for {one_line(self._problem.id, 60)}; it {under}", markup=False)
            yield Input(placeholder="in your own words: what should be tried?", id="prose")
            if self._moves:
                yield OptionList(*(Option(_entry(move)) for move in self._moves), markup=False, id="moves")
                yield Static("", markup=False, id="about")
            yield Static(
                "enter: seed    tab: words or the playbook's moves    esc: cancel\n"
                "Words wait for an author where no proposer of this session reads prose.",
                markup=False,
                id="hint",
            )

    def on_mount(self) -> None:
        self.query_one("#prose", Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if text := event.value.strip():
            self.dismiss(IdeaWish(text))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one("#about", Static).update(one_line(self._moves[event.option_index].text, 600))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        move = self._moves[event.option_index]
        self.dismiss(IdeaWish(self.query_one("#prose", Input).value.strip(), move.category, move.name))


def _entry(move: CatalogueEntry) -> Text:
    return Text(f"{move.name}  ({CATEGORY_NAMES.get(move.category, move.category)})", no_wrap=True)
