"""Options that limit what a search may spend."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

import click

from tui.cli.shared.common import F, FiniteAbove0, Integer

if TYPE_CHECKING:
    from engine.session.records.requests import ChangeBudget, ChangeShare

MOST = 10**12
"""Largest limit that a user may set on rounds, tokens or calls."""


class Count(Integer):
    """An option type for integers from 1 to ``MOST``, an upper bound that ``--help`` need not mention."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number > MOST:
            self.fail(f"{value!r} is above the maximum of {MOST:,}", param, ctx)
        return number


COUNT = Count()


def _wish(limits: dict[str, Any], model: str | None, per_problem: bool) -> ChangeBudget | ChangeShare | None:
    from engine.session.records.requests import ChangeBudget, ChangeShare

    if model is None and not per_problem:
        return ChangeBudget(**limits) if limits else None
    if model is not None and per_problem:
        raise click.UsageError("--model and --per-problem cannot be combined; use a separate command for each")
    if limits.keys() & {"minutes", "rounds"} or not limits:
        raise click.UsageError(
            "--model and --per-problem apply only to --dollars, --tokens and --calls; give at least one of these"
        )
    return ChangeShare(model=model or "", **limits)


def limit_options(function: F) -> F:
    """Add an option for each limit. The command receives ``request``, which is None if the user omits all limits."""
    above_0 = FiniteAbove0()
    options = (
        click.option("--minutes", type=above_0, help="Search time limit for the whole session, in minutes."),
        click.option("--rounds", type=COUNT, help="Rounds per problem, after round 0."),
        click.option("--dollars", type=above_0, help="Limit on the cost of model calls, in dollars."),
        click.option("--tokens", type=COUNT, help="Limit on the sum of input and output tokens."),
        click.option("--calls", type=COUNT, help="Limit on model calls, including retries."),
        click.option("--model", metavar="NAME", help="Apply --dollars, --tokens and --calls to this model only."),
        click.option(
            "--per-problem", is_flag=True, help="Apply --dollars, --tokens and --calls to each problem separately."
        ),
    )

    @functools.wraps(function)
    def gathered(*arguments: Any, **named: Any) -> Any:
        requested = {name: named.pop(name) for name in ("minutes", "rounds", "dollars", "tokens", "calls")}
        limits = {key: value for key, value in requested.items() if value is not None}
        return function(*arguments, request=_wish(limits, named.pop("model"), named.pop("per_problem")), **named)

    for option in reversed(options):
        gathered = option(gathered)
    return cast(F, gathered)
