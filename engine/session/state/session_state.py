"""The state of a session, built from its events: problems, rounds, ideas, variants and their ranking. Pure. This module
gives the engine, the monitor, resume, replay and reports the same state of a session.

``SessionState.apply`` accepts every order of events that an engine can produce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.state.event_handlers import HANDLERS
from engine.session.state.nodes import EngineState, IdeaState, ProblemState, RoundState, VariantState
from engine.session.state.ranking import standing_order
from engine.session.state.session_data import Outcome, SessionData

__all__ = ["EngineState", "IdeaState", "Outcome", "ProblemState", "RoundState", "SessionState", "VariantState", "fold"]

Listener = Callable[[Recorded], object]
_NONE: Mapping[type, Listener] = {}


class SessionState(SessionData):
    """The state of a session: its data, which events update, and the ranking of its kernels."""

    def apply(self, recorded: Recorded) -> None:
        """Apply one event to the state. Where possible, ignore unknown references, which occur in altered files.

        Raises:
            SessionDamaged: The event contradicts earlier events.
        """
        self.apply_all((recorded,))

    def apply_all(self, recorded: Iterable[Recorded], listeners: Mapping[type, Listener] = _NONE) -> None:
        """Apply many events to the state. After each event, call the listener for the event's type, if any."""
        for one in recorded:
            event, time = one.event, one.time
            kind = type(event)
            try:
                if (handler := HANDLERS.get(kind)) is not None:
                    handler(self, event, time)
            except (LookupError, ArithmeticError, TypeError, ValueError) as error:
                raise self._unfit(one, error) from error
            self.seq, self.time = one.seq, time
            if kind in listeners:
                listeners[kind](one)

    def _unfit(self, recorded: Recorded, error: Exception) -> Exception:
        # Import the class here, because its package imports this module.
        from engine.session.store.errors import SessionDamaged

        return SessionDamaged(
            f"{self.name or 'the session'}: event {recorded.seq} ({ev.kind_of(recorded.event)}) contradicts earlier "
            f"events ({error!r}). Another program altered the session, or another kernel-tui version wrote it. Start a "
            f"new session.",
            Path(self.name),
        )

    def standing_order(self, problem: str, count: int | None = None) -> list[VariantState]:
        """Return ``leaders`` in display order: by their comparable speedups (``engine.session.state.comparable``).

        A kernel may precede the best kernel only if the best kernel's runoff timed both.
        """
        return standing_order(self, problem, count)


def fold(recorded: Iterable[Recorded]) -> SessionState:
    """Return the state after all events in ``recorded``."""
    state = SessionState()
    state.apply_all(recorded)
    return state
