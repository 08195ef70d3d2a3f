"""What a search may spend: minutes over all lifetimes of its engine, and rounds per problem. Pure."""

from __future__ import annotations

from msgspec import Struct

from engine.state import SessionState

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


def elapsed_s(state: SessionState, now: float) -> float:
    """Seconds that this session's engines have lived; one that died counts until its last event."""
    engine = state.engine
    running = now - engine.started_at if engine is not None and engine.stopped is None else 0.0
    return state.search_seconds + max(0.0, running)
