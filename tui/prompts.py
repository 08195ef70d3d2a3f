"""Prompts that a person has to answer: which of them wait, and how often that is said."""

from __future__ import annotations

import time
from pathlib import Path

from engine.models.protocol import call_name
from engine.proposers.mailbox import Mailbox
from engine.session import SessionPaths
from engine.spend import MANUAL, CallState
from engine.state import SessionState
from tui.source import argument_of

_LONG_S = 5.0
"""A prompt that waits for less is not worth a line."""


def unanswered(state: SessionState, directory: Path | None) -> list[CallState]:
    """Calls to a person for which no file of a reply lies in the inbox of the session's ``directory``."""
    asked = [call for call in state.spending.flying.values() if call.provider == MANUAL]
    replied = Mailbox(directory).replied() if asked and directory is not None else set()
    return [call for call in asked if call_name(call.site) not in replied]


class PromptLines:
    """A line for prompts that wait, once for each: where nobody sees the monitor, nothing else says why a search that
    waits for them does nothing."""

    def __init__(self, paths: SessionPaths) -> None:
        self._paths = paths
        self._began = time.time()
        self._said: set[str] = set()

    def lasting(self, state: SessionState, now: float) -> str | None:
        """What is to be said at ``now``, with all that wait where one of them is new."""
        asked = [call for call in state.spending.flying.values() if call.provider == MANUAL]
        unsaid = [call for call in asked if call.id not in self._said]
        if not any(now - max(call.started_at, self._began) >= _LONG_S for call in unsaid):
            return None
        waiting = unanswered(state, self._paths.directory)
        new = {call.id for call in waiting} - self._said
        self._said.update(call.id for call in asked)
        if not new:
            return None
        prompts = "1 prompt waits" if len(waiting) == 1 else f"{len(waiting)} prompts wait"
        return f"{prompts} for a reply by hand; see: kernel-tui reply {argument_of(self._paths)}"
