"""Find unanswered prompts for the user, and report each once."""

from __future__ import annotations

import time
from pathlib import Path

from engine.session.records.model_calls import call_name
from engine.session.state.session_state import SessionState
from engine.session.state.spend import MANUAL, CallState
from engine.session.store import SessionPaths
from tui.text.program import program
from tui.view.source import argument_of

_LONG_S = 5.0
"""Seconds that a prompt must wait before a line reports it."""


def unanswered(state: SessionState, directory: Path | None) -> list[CallState]:
    """Return the prompts for the user that have no reply in the inbox of the session's ``directory``."""
    asked = [call for call in state.spending.flying.values() if call.provider == MANUAL]
    if not asked or directory is None:
        return asked
    from engine.proposers.mailbox import Mailbox

    replied = Mailbox(directory).replied()
    return [call for call in asked if call_name(call.site) not in replied]


class PromptLines:
    """Report each unanswered prompt once, so that a headless log shows why a search is idle."""

    def __init__(self, paths: SessionPaths) -> None:
        self._paths = paths
        self._began = time.time()
        self._said: set[str] = set()

    def lasting(self, state: SessionState, now: float) -> str | None:
        """Return a line about the unanswered prompts, or None if none of them is new."""
        asked = [call for call in state.spending.flying.values() if call.provider == MANUAL]
        unsaid = [call for call in asked if call.id not in self._said]
        if not any(now - max(call.started_at, self._began) >= _LONG_S for call in unsaid):
            return None
        waiting = unanswered(state, self._paths.directory)
        new = {call.id for call in waiting} - self._said
        self._said.update(call.id for call in asked)
        if not new:
            return None
        prompts = "1 prompt is waiting" if len(waiting) == 1 else f"{len(waiting)} prompts are waiting"
        return f"{prompts} for a reply by hand; see: {program()} reply {argument_of(self._paths)}"
