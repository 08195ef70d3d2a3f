"""Compute the cost and gain of model calls, as figures for a table.

A kernel's gain is its speedup over the best kernel at that time, or over eager for the first kernel. Pruned kernels
gain nothing. Gains multiply, so the table adds their logarithms. The unit is a step of 1%: twice as fast as eager is
70 steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import expm1, log
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from engine.config.toml_table import toml_table
from engine.session.budget import NO_CAP, Cap, changed_cap
from engine.session.records.model_calls import HOPELESS
from engine.session.state.session_state import SessionState
from engine.session.state.spend import CallState, Spend
from tui.view.model import Model

ONE_PERCENT = log(1.01)


class Share(Struct, frozen=True):
    """The cost and gain of a model, problem, round or idea.

    ``gain`` is the sum of the logarithms of the speedups gained, over ``problems`` problems.
    """

    name: str
    spend: Spend
    gain: float
    cap: Cap = NO_CAP
    problems: int = 1

    @property
    def gained(self) -> float:
        """Mean relative gain per problem. 0.5 means 1.5 times as fast."""
        return expm1(self.gain / self.problems)

    @property
    def dollars_per_percent(self) -> float | None:
        """Dollars per step of 1%, or None if there is no gain or a price is unknown."""
        steps = self.gain / ONE_PERCENT
        return self.spend.dollars / steps if steps > 0 and self.spend.dollars and not self.spend.unpriced else None


class Gains(Struct):
    """Logarithms of speedups by model, problem, round and idea."""

    total: float = 0.0
    model: dict[str, float] = field(default_factory=dict)
    problem: dict[str, float] = field(default_factory=dict)
    round: dict[str, float] = field(default_factory=dict)
    idea: dict[str, float] = field(default_factory=dict)


class SpendTable(Struct, frozen=True):
    """A session's costs and gains, in total and by model, problem, round and idea."""

    total: Share
    models: list[Share]
    problems: list[Share]
    rounds: list[Share]
    ideas: list[Share]


def is_spending(model: Model) -> bool:
    """Return whether the session has called a model."""
    return bool(model.state.spending.calls)


def refusals(state: SessionState) -> dict[str, CallState]:
    """Return the last failed call of each model that the engine has stopped calling."""
    last: dict[str, CallState] = {}
    for call in state.spending.calls.values():
        if call.failure in HOPELESS or call.reply is not None:
            last[call.model] = max(call, last.get(call.model, call), key=lambda one: one.ended_at or 0.0)
    return {name: call for name, call in last.items() if call.reply is None}


def spend_table(model: Model) -> SpendTable:
    spending, gains, caps = model.state.spending, gains_of(model.state), caps_of(model)
    limits = model.limits

    many = max(1, len(model.state.problems))

    def shares(spends: Mapping[str, Spend], gain: Mapping[str, float]) -> list[Share]:
        return [Share(name, spend, gain.get(name, 0.0)) for name, spend in spends.items()]

    return SpendTable(
        Share("all", spending.total, gains.total, Cap(limits.dollars, limits.tokens, limits.calls), many),
        [replace(one, cap=caps.get(one.name, Cap()), problems=many) for one in shares(spending.model, gains.model)],
        [replace(one, cap=caps.get("", Cap())) for one in shares(spending.problem, gains.problem)],
        shares(spending.round, gains.round),
        sorted(shares(spending.idea, gains.idea), key=lambda one: (-one.spend.dollars, -one.spend.tokens)),
    )


def gains_of(state: SessionState) -> Gains:
    """Compute the gains of all kernels, in the order of their verdicts."""
    gains, best = Gains(), dict.fromkeys(state.problems, 1.0)
    judged = [one for one in state.variants.values() if one.judged_at is not None and one.speedup]
    for variant in sorted(judged, key=lambda one: one.judged_at or 0.0):
        speedup, before = variant.speedup or 0.0, best.get(variant.problem, 1.0)
        if speedup <= before or state.is_pruned(variant.id):
            continue
        best[variant.problem] = speedup
        gain = log(speedup / before)
        gains.total += gain
        for counts, name in (
            (gains.model, variant.proposer),
            (gains.problem, variant.problem),
            (gains.round, f"{variant.problem}/r{variant.round}"),
            (gains.idea, variant.idea),
        ):
            counts[name] = counts.get(name, 0.0) + gain
    return gains


def caps_of(model: Model) -> dict[str, Cap]:
    """Return the limits of each model by name, and the limits of each problem under "".

    The limits come from the session's configuration, updated with the user's changes.
    """
    created, changed = _created_caps(model), model.state.shares
    return {name: changed_cap(created.get(name, Cap()), changed.get(name)) for name in {**created, **changed}}


def _created_caps(model: Model) -> dict[str, Cap]:
    if (directory := model.directory) is None:
        return {}
    try:
        config = toml_table((directory / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    tables = config.get("models", [])
    named = {str(table.get("name") or table["model"]): table for table in tables if "model" in table}
    found = {name: _cap(table.get("budget")) for name, table in named.items()}
    return {**found, "": _cap(config.get("budget", {}).get("per_problem"))}


def _cap(table: Any) -> Cap:
    if not isinstance(table, dict):
        return Cap()
    dollars, tokens, calls = (table.get(name) for name in ("dollars", "tokens", "calls"))
    return Cap(
        float(dollars) if isinstance(dollars, int | float) else None,
        tokens if isinstance(tokens, int) else None,
        calls if isinstance(calls, int) else None,
    )


def money(dollars: float | None) -> str:
    """Format dollars as ``$12.34``, as ``$0.0042`` below ten cents, or as ``-`` for None."""
    if dollars is None:
        return "-"
    return f"${dollars:,.2f}" if dollars >= 0.1 or not dollars else f"${dollars:.4f}"


def count(number: int) -> str:
    """Format a token count: ``812``, ``12.3k`` or ``4.56M``."""
    if number < 10_000:
        return f"{number:,}"
    return f"{number / 1e3:.1f}k" if number < 1_000_000 else f"{number / 1e6:.2f}M"
