"""Change the budget: minutes, rounds, and what models may cost. An empty field leaves that limit as it is."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from engine.events import ChangeBudget
from tui import format as fmt
from tui.model import Model
from tui.spend import is_spending, money

_FIELDS = {
    "minutes": "Minutes, over every run",
    "rounds": "Rounds per problem",
    "dollars": "Dollars for models",
    "tokens": "Tokens of models",
    "calls": "Calls to models",
}
_FRACTIONS = ("minutes", "dollars")


class BudgetScreen(ModalScreen[ChangeBudget | None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "cancel", show=False)]
    DEFAULT_CSS = """
    BudgetScreen { align: center middle; }
    BudgetScreen > Vertical { width: 66; height: auto; padding: 1 2; background: $surface; border: round $primary; }
    BudgetScreen Horizontal { height: 1; margin-bottom: 1; }
    BudgetScreen Horizontal Static { width: 42; }
    BudgetScreen Horizontal Input { width: 1fr; }
    BudgetScreen #problem { color: $text-error; height: auto; }
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def compose(self) -> ComposeResult:
        limits, spent = self._model.limits, _spent(self._model)
        with Vertical():
            for name, label in _FIELDS.items():
                value = getattr(limits, name)
                shown = "" if value is None else f"{value:g}" if name in _FRACTIONS else str(value)
                with Horizontal():
                    yield Static(label + spent.get(name, ""), markup=False)
                    yield Input(shown, placeholder="no limit", id=name, compact=True)
            yield Static("tab: next    enter: change    esc: leave it", markup=False)
            yield Static("", markup=False, id="problem")

    def on_input_submitted(self) -> None:
        wishes: dict[str, float | int | None] = {}
        for name in _FIELDS:
            text = self.query_one(f"#{name}", Input).value.strip().replace("_", "").replace(",", "")
            try:
                wishes[name] = None if not text else float(text) if name in _FRACTIONS else int(text)
            except ValueError:
                number = "a number" if name in _FRACTIONS else "a whole number"
                self._refuse(f"{name.capitalize()} are {number}.")
                return
        if any(value is not None and not 0 < value < 1e12 for value in wishes.values()):
            self._refuse("Every limit must be above 0.")
            return
        limits = self._model.limits
        changed = {name: value for name, value in wishes.items() if value != getattr(limits, name)}
        wish = ChangeBudget(**changed)  # type: ignore[arg-type]
        self.dismiss(None if wish == ChangeBudget() else wish)

    def _refuse(self, why: str) -> None:
        self.query_one("#problem", Static).update(why)


def _spent(model: Model) -> dict[str, str]:
    """What is gone of each limit, in words; of models only where some are asked."""
    words = {"minutes": fmt.clock(model.search_seconds())}
    if is_spending(model):
        spend = model.state.spending.total
        words |= {"dollars": money(spend.dollars), "tokens": f"{spend.tokens:,}", "calls": f"{spend.calls:,}"}
    return {name: f" ({gone} spent)" for name, gone in words.items()}
