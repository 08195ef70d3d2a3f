"""Change the budget: minutes and rounds. An empty field leaves that limit as it is."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from tui.model import Model


class BudgetScreen(ModalScreen[tuple[float | None, int | None] | None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "cancel", show=False)]
    DEFAULT_CSS = """
    BudgetScreen { align: center middle; }
    BudgetScreen > Vertical { width: 60; height: auto; padding: 1 2; background: $surface; border: round $primary; }
    BudgetScreen Input { margin-bottom: 1; }
    BudgetScreen #problem { color: $text-error; height: auto; }
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def compose(self) -> ComposeResult:
        minutes, rounds = self._model.minutes, self._model.rounds
        with Vertical():
            yield Static("Minutes of search in all, over every run of this session", markup=False)
            yield Input(f"{minutes:g}" if minutes is not None else "", placeholder="as configured", id="minutes")
            yield Static("Rounds per problem", markup=False)
            yield Input(str(rounds) if rounds is not None else "", placeholder="as configured", id="rounds")
            yield Static("enter: change    esc: leave it", markup=False)
            yield Static("", markup=False, id="problem")

    def on_input_submitted(self) -> None:
        minutes, rounds = (self.query_one(name, Input).value.strip() for name in ("#minutes", "#rounds"))
        try:
            wish = (float(minutes) if minutes else None, int(rounds) if rounds else None)
        except ValueError:
            self.query_one("#problem", Static).update("Minutes are a number, rounds a whole number.")
            return
        if any(value is not None and not 0 < value < 1e6 for value in wish):
            self.query_one("#problem", Static).update("Both must be above 0.")
            return
        self.dismiss(None if wish == (None, None) else wish)
