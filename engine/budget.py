"""What a search may spend: minutes of engine life, rounds per problem, and what models may cost. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from engine.events import ShareChanged
from engine.state import SessionState

if TYPE_CHECKING:
    from engine.config import Config, SpendLimits

RESERVE_SHARE = 0.25
"""At most this share of the minutes is kept back for what must still be measured when the rounds end."""


class Budget(Struct, frozen=True):
    """``minutes``: of engine life over the whole session, None without a limit. ``rounds``: per problem."""

    minutes: float | None
    rounds: int

    def left_s(self, elapsed_s: float, reserve_s: float = 0.0) -> float:
        """Seconds left after ``elapsed_s``, with ``reserve_s`` of them (``RESERVE_SHARE`` at most) kept back."""
        if self.minutes is None:
            return float("inf")
        whole = self.minutes * 60.0
        return whole - min(reserve_s, whole * RESERVE_SHARE) - elapsed_s


def budget_of(state: SessionState, minutes: float | None, rounds: int) -> Budget:
    """What the config allows, unless a person changed it in this session."""
    return Budget(
        minutes=state.minutes if state.minutes is not None else minutes,
        rounds=state.rounds if state.rounds is not None else rounds,
    )


class Cap(Struct, frozen=True):
    """The most that may go to models; None without a limit. ``tokens``: input and output; ``calls``: attempts."""

    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None


NO_CAP = Cap()


class Caps(Struct, frozen=True):
    """``problem``: of each problem alone. ``models``: of each model alone, by the name of its ``[[models]]`` table."""

    session: Cap = NO_CAP
    problem: Cap = NO_CAP
    models: dict[str, Cap] = {}


def caps_of(state: SessionState, config: Config) -> Caps:
    """What the config allows to be spent on models, unless a person changed it in this session."""
    from engine.config_models import RemoteModel  # pydantic is slow to import, and a monitor does without

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
            if isinstance(model, RemoteModel)
        },
    )


def _cap(limits: SpendLimits, changed: ShareChanged | None) -> Cap:
    return changed_cap(Cap(limits.dollars, limits.tokens, limits.calls), changed)


def changed_cap(created: Cap, changed: ShareChanged | None) -> Cap:
    """A limit as a person changed it since the session was created."""
    if changed is None:
        return created
    return Cap(
        dollars=changed.dollars if changed.dollars is not None else created.dollars,
        tokens=changed.tokens if changed.tokens is not None else created.tokens,
        calls=changed.calls if changed.calls is not None else created.calls,
    )


def elapsed_s(state: SessionState, now: float) -> float:
    """Seconds that this session's engines have lived, without pauses and without waits for devices that other processes
    held; one that died counts until its last event."""
    engine = state.engine
    running = now - engine.started_at if engine is not None and engine.stopped is None else 0.0
    paused = now - state.paused_at if state.paused_at is not None else 0.0
    held_up = now - state.held_up_at if state.held_up_at is not None else 0.0
    return state.search_seconds + max(0.0, running) - max(0.0, paused) - max(0.0, held_up)
