"""Replies that a session has recorded: used again on resume, and all that ``replay`` has."""

from __future__ import annotations

from collections.abc import Callable

from engine.models.protocol import CallSite, Reply, call_name
from engine.state import SessionState


def recorded_reply(state: SessionState, site: CallSite, text: Callable[[str], str]) -> Reply | None:
    """The reply to an equal call that the session paid for, unless it was found to be of no use before.

    ``text`` reads a blob by its digest. Raises SessionError.
    """
    if call_name(site) in state.useless:
        return None
    for call in reversed(state.spending.calls.values()):
        if call.site == site and call.reply is not None:
            return Reply(text(call.reply), call.answered, call.usage, call.finish, call.tier)
    return None
