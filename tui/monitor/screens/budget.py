"""Change the budget: minutes, rounds, and the cost of model calls, in total, per model or per problem."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from engine.session.budget import Cap
from engine.session.records.requests import ChangeBudget, ChangeShare
from engine.session.state.spend import Spend
from tui.monitor.screens.confirm import AGAIN_S, ConfirmScreen
from tui.monitor.steering.plans import STARTS_AGAIN, plan_budget, why_stays_stopped
from tui.text.sanitize import one_line
from tui.view.model import Model
from tui.view.source import Limits
from tui.view.spend import caps_of, is_spending, money

_FIELDS = {
    "minutes": "Minutes of all engine runs",
    "rounds": "Rounds per problem",
    "dollars": "Model cost in dollars",
    "tokens": "Model tokens",
    "calls": "Model calls",
}
_FRACTIONS = ("minutes", "dollars")


class BudgetScreen(ModalScreen[ChangeBudget | ChangeShare | None]):
    """A dialog for the limits of the whole search. The key ctrl+n switches to each model's limits, then to the limits
    per problem.

    The dialog stays open if the user declines to set limits below the amount already spent.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "cancel", show=False),
        Binding("ctrl+n", "turn", "other limits", show=False, priority=True),
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

    def __init__(self, model: Model, *, starts: bool = False) -> None:
        """``starts`` says whether new limits start the engine of a stopped search."""
        super().__init__()
        self._model = model
        self._starts = starts
        self._caps = caps_of(model)
        self._shares = [name for name in self._caps if name]
        if self._shares:
            self._shares.append("")
        self._share: str | None = None
        self._shown: dict[str, str] = {}
        """The text of each field before the user changed it. The text may be a rounded limit."""

    def compose(self) -> ComposeResult:
        limits, labels = self._limits, self._labels()
        with Vertical():
            whose = "the whole search" if self._share is None else self._share or "each problem"
            yield Static(f"Limits of {one_line(whose, 50)}", markup=False, id="whose")
            for name in self._fields:
                value = getattr(limits, name)
                shown = "" if value is None else f"{value:g}" if name in _FRACTIONS else str(value)
                self._shown[name] = shown
                with Horizontal():
                    yield Static(labels[name], markup=False, id=f"{name}-label")
                    yield Input(shown, placeholder="no limit", id=name, compact=True)
            turn = "ctrl+n: limits per model and per problem\n" if self._shares else ""
            if self._starts:
                yield Static(STARTS_AGAIN, markup=False)
            yield Static(f"{turn}tab: next field    enter: change limits    esc: cancel", markup=False)
            yield Static("", markup=False, id="problem")

    def on_mount(self) -> None:
        self.set_interval(AGAIN_S, self._show_spent)

    def _labels(self) -> dict[str, str]:
        """Return each field's label, with the amount spent."""
        spent = _spent(self._model, self._share)
        labels = {name: _FIELDS[name] if self._share is None else _FIELDS[name].partition(" ")[0] for name in _FIELDS}
        return {name: labels[name] + spent.get(name, "") for name in self._fields}

    def _show_spent(self) -> None:
        for name, label in self._labels().items():
            for shown in self.query(f"#{name}-label").results(Static):  # None while the dialog changes its fields.
                shown.update(label)

    @property
    def _fields(self) -> tuple[str, ...]:
        return tuple(_FIELDS) if self._share is None else ("dollars", "tokens", "calls")

    @property
    def _limits(self) -> Limits | Cap:
        return self._model.limits if self._share is None else self._caps[self._share]

    async def action_turn(self) -> None:
        """Switch to the next set of limits. The dialog discards unsaved input."""
        if not self._shares:
            self._refuse("This session does not call any models, so only the whole search has limits.")
            return
        order = [None, *self._shares]
        self._share = order[(order.index(self._share) + 1) % len(order)]
        await self.recompose()
        self.query(Input).first().focus()

    def on_input_submitted(self) -> None:
        requested: dict[str, float | int | None] = {}
        limits = self._limits
        for name in self._fields:
            text = self.query_one(f"#{name}", Input).value.strip().replace("_", "").replace(",", "")
            if text == self._shown[name]:
                requested[name] = getattr(limits, name)
                continue
            try:
                requested[name] = None if not text else float(text) if name in _FRACTIONS else int(text)
            except ValueError:
                number = "a number" if name in _FRACTIONS else "a whole number"
                self._refuse(f"{name.capitalize()} must be {number}.")
                return
        if any(value is not None and not 0 < value < 1e12 for value in requested.values()):
            self._refuse("Every limit must be above 0.")
            return
        changed: dict[str, Any] = {name: value for name, value in requested.items() if value != getattr(limits, name)}
        if removed := [name for name, value in changed.items() if value is None]:
            self._refuse(f"{removed[0].capitalize()}: a limit cannot be removed. Type a larger number.")
        elif not changed:
            self.dismiss(None)
        elif self._share is None:
            self._request(ChangeBudget(**changed))
        else:
            self._request(ChangeShare(model=self._share, **changed))

    def _request(self, change: ChangeBudget | ChangeShare) -> None:
        """Close the dialog with this result, after a confirmation if necessary."""
        if self._starts and (why := why_stays_stopped(self._model, change)) is not None:
            self._refuse(why)
            return
        plan = plan_budget(self._model, change, starts=self._starts)
        if not plan.question:
            self.dismiss(change)
            return
        self._refuse("")

        def answered(agreed: bool | None) -> None:
            if agreed:
                self.dismiss(change)

        self.app.push_screen(ConfirmScreen(lambda: plan.question, no="back to the limits"), answered)

    def _refuse(self, why: str) -> None:
        self.query_one("#problem", Static).update(why)


def _spent(model: Model, share: str | None) -> dict[str, str]:
    """Return the used part of each limit, as text."""
    words = {"minutes": f"{model.search_seconds() / 60:.1f}"}
    spending = model.state.spending
    if is_spending(model) and share != "":  # The problems have spent different amounts.
        spend = spending.total if share is None else spending.model.get(share, Spend())
        words |= {"dollars": money(spend.dollars), "tokens": f"{spend.tokens:,}", "calls": f"{spend.calls:,}"}
    return {name: f" ({gone} used)" for name, gone in words.items()}
