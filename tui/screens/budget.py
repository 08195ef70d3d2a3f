"""Change the budget: minutes, rounds, and what models may cost, all together or each alone. An empty field leaves that
limit as it is."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from engine.budget import Cap
from engine.commands import ChangeBudget, ChangeShare
from engine.spend import Spend
from tui.model import Model
from tui.sanitize import one_line
from tui.source import Limits
from tui.spend import caps_of, is_spending, money

_FIELDS = {
    "minutes": "Minutes, over every run",
    "rounds": "Rounds per problem",
    "dollars": "Dollars for models",
    "tokens": "Tokens of models",
    "calls": "Calls to models",
}
_FRACTIONS = ("minutes", "dollars")


class BudgetScreen(ModalScreen[ChangeBudget | ChangeShare | None]):
    """The whole search's limits; a key turns to those of each model and of each problem, where models are asked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "cancel", show=False),
        Binding("ctrl+n", "turn", "whose limits", show=False, priority=True),
    ]
    DEFAULT_CSS = """
    BudgetScreen { align: center middle; }
    BudgetScreen > Vertical { width: 66; height: auto; padding: 1 2; background: $surface; border: round $primary; }
    BudgetScreen #whose { text-style: bold; margin-bottom: 1; }
    BudgetScreen Horizontal { height: 1; margin-bottom: 1; }
    BudgetScreen Horizontal Static { width: 42; }
    BudgetScreen Horizontal Input { width: 1fr; }
    BudgetScreen #problem { color: $text-error; height: auto; }
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model
        self._caps = caps_of(model)
        self._shares = [name for name in self._caps if name]
        if self._shares:
            self._shares.append("")
        self._share: str | None = None

    def compose(self) -> ComposeResult:
        limits, spent = self._limits, _spent(self._model, self._share)
        with Vertical():
            if self._shares:
                whose = "the whole search" if self._share is None else self._share or "each problem alone"
                yield Static(f"Limits of {one_line(whose, 50)}", markup=False, id="whose")
            for name in self._fields:
                value = getattr(limits, name)
                shown = "" if value is None else f"{value:g}" if name in _FRACTIONS else str(value)
                label = _FIELDS[name] if self._share is None else _FIELDS[name].partition(" ")[0]
                with Horizontal():
                    yield Static(label + spent.get(name, ""), markup=False)
                    yield Input(shown, placeholder="no limit", id=name, compact=True)
            turn = "ctrl+n: of a model, of each problem\n" if self._shares else ""
            yield Static(f"{turn}tab: next    enter: change    esc: cancel", markup=False)
            yield Static("", markup=False, id="problem")

    @property
    def _fields(self) -> tuple[str, ...]:
        return tuple(_FIELDS) if self._share is None else ("dollars", "tokens", "calls")

    @property
    def _limits(self) -> Limits | Cap:
        return self._model.limits if self._share is None else self._caps[self._share]

    async def action_turn(self) -> None:
        """The next whose limits may be changed; what was typed for this one is dropped."""
        if not self._shares:
            self._refuse("No model is asked in this session, so nothing but the whole search has limits.")
            return
        order = [None, *self._shares]
        self._share = order[(order.index(self._share) + 1) % len(order)]
        await self.recompose()
        self.query(Input).first().focus()

    def on_input_submitted(self) -> None:
        wishes: dict[str, float | int | None] = {}
        for name in self._fields:
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
        limits = self._limits
        changed: dict[str, Any] = {name: value for name, value in wishes.items() if value != getattr(limits, name)}
        if not any(value is not None for value in changed.values()):
            self.dismiss(None)
        elif self._share is None:
            self.dismiss(ChangeBudget(**changed))
        else:
            self.dismiss(ChangeShare(model=self._share, **changed))

    def _refuse(self, why: str) -> None:
        self.query_one("#problem", Static).update(why)


def _spent(model: Model, share: str | None) -> dict[str, str]:
    """What is gone of each limit, in words; of models only where some are asked."""
    words = {"minutes": f"{model.search_seconds() / 60:.1f}"}
    spending = model.state.spending
    if is_spending(model) and share != "":  # each problem has spent something else
        spend = spending.total if share is None else spending.model.get(share, Spend())
        words |= {"dollars": money(spend.dollars), "tokens": f"{spend.tokens:,}", "calls": f"{spend.calls:,}"}
    return {name: f" ({gone} spent)" for name, gone in words.items()}
