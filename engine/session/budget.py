"""A search's budgets: minutes of engine time, rounds per problem, and spending on models. All functions are pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from engine.session.records.events import ShareChanged
from engine.session.state.session_state import SessionState

if TYPE_CHECKING:
    from engine.config.schema import Config, SpendLimits

RESERVE_SHARE = 0.25
"""Maximum share of the time budget to reserve for measurements after the last round."""
SHORT_RESERVE_SHARE, SHORT_RESERVE_S = 0.4, 120.0
"""Maximum share of a short time budget to reserve, and the seconds up to which this share applies. On a slow machine,
``torch.compile`` takes longer than ``RESERVE_SHARE`` of a budget of a few minutes.
"""
OVERRUN_SHARE = 0.1
"""Longest overrun of deferred work past the time budget, as a share of the budget."""
LEAST_OVERRUN_S = 10.0
"""Overrun that deferred work may always use, in seconds, even if ``OVERRUN_SHARE`` of the budget is less."""


class Budget(Struct, frozen=True):
    """Limits on time and rounds. ``minutes``: engine time, or None if unlimited. ``rounds``: rounds per problem."""

    minutes: float | None
    rounds: int

    @property
    def overrun_s(self) -> float:
        """Longest time that deferred work may continue after the end of the time budget, in seconds."""
        return max(LEAST_OVERRUN_S, OVERRUN_SHARE * 60.0 * (self.minutes or 0.0))

    def left_s(self, elapsed_s: float, reserve_s: float = 0.0) -> float:
        """Return the seconds left after ``elapsed_s`` and a reserve of at most ``most_reserved_s``. Without a time
        budget, the result is infinite.
        """
        if self.minutes is None:
            return float("inf")
        return self.minutes * 60.0 - min(reserve_s, most_reserved_s(self.minutes)) - elapsed_s


def most_reserved_s(minutes: float) -> float:
    """Return the maximum seconds of a budget of ``minutes`` to reserve for measurements after the last round."""
    whole_s = minutes * 60.0
    return max(RESERVE_SHARE * whole_s, min(SHORT_RESERVE_SHARE * whole_s, SHORT_RESERVE_S))


def budget_of(state: SessionState, minutes: float | None, rounds: int) -> Budget:
    """Return the config's limits on time and rounds, with the changes that a person requested in this session."""
    return Budget(
        minutes=state.minutes if state.minutes is not None else minutes,
        rounds=state.rounds if state.rounds is not None else rounds,
    )


class Cap(Struct, frozen=True):
    """Spending limits for models; None means unlimited. ``tokens``: input plus output. ``calls``: attempts, including
    retries.
    """

    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None


NO_CAP = Cap()


class Caps(Struct, frozen=True):
    """All spending limits. ``problem`` applies to each problem; the keys of ``models`` are ``[[models]]`` names."""

    session: Cap = NO_CAP
    problem: Cap = NO_CAP
    models: dict[str, Cap] = {}


def caps_of(state: SessionState, config: Config) -> Caps:
    """Return the config's spending limits, with the changes that a person requested in this session."""
    from engine.config.model_tables import CalledModel

    budget = config.budget
    return Caps(
        session=Cap(
            dollars=state.dollars if state.dollars is not None else budget.dollars,
            tokens=state.tokens if state.tokens is not None else budget.tokens,
            calls=state.calls if state.calls is not None else budget.calls,
        ),
        problem=_cap(budget.per_problem, state.shares.get("")),
        models={
            model.label: _cap(model.budget, state.shares.get(model.label))
            for model in config.models
            if isinstance(model, CalledModel)
        },
    )


def _cap(limits: SpendLimits, changed: ShareChanged | None) -> Cap:
    return changed_cap(Cap(limits.dollars, limits.tokens, limits.calls), changed)


def changed_cap(created: Cap, changed: ShareChanged | None) -> Cap:
    """Apply all changes since the session's creation to one limit."""
    if changed is None:
        return created
    return Cap(
        dollars=changed.dollars if changed.dollars is not None else created.dollars,
        tokens=changed.tokens if changed.tokens is not None else created.tokens,
        calls=changed.calls if changed.calls is not None else created.calls,
    )


def elapsed_s(state: SessionState, now: float) -> float:
    """Return this session's engine time in seconds.

    The result excludes pauses and time without an available device. If the engine died, pass the time of its last
    event or heartbeat as ``now``.
    """
    return state.elapsed_s(now)
