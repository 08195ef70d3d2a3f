"""Look up recorded replies, which the engine reuses after a resume, and which replays need."""

from __future__ import annotations

from collections.abc import Callable

from engine.proposers.llm.model_protocol import Reply
from engine.session.records.model_calls import CallSite, call_name
from engine.session.state.session_state import SessionState


def recorded_reply(state: SessionState, site: CallSite, text: Callable[[str], str]) -> Reply | None:
    """Find the recorded reply for ``site``, unless that reply proved unusable.

    ``text`` reads a blob by its digest. Raises ``SessionError``.
    """
    if call_name(site) in state.useless:
        return None
    for call in reversed(state.spending.calls.values()):
        if call.site == site and call.reply is not None:
            return Reply(text(call.reply), call.answered, call.usage, call.finish, call.tier)
    return None
