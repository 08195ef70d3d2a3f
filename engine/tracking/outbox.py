"""Record which run and which events a session's tracker has received."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct, field

from engine.session.store import SessionPaths
from engine.session.store.paths import replace_file


class Outbox(Struct):
    """Tracking state, stored as ``tracking.json`` in the session's directory.

    ``uri`` and ``run`` identify the run. ``seq`` is the number of the last event whose metrics the tracker has
    received. ``best`` maps each problem to the last best kernel that the tracker has received.
    """

    uri: str = ""
    run: str = ""
    seq: int = 0
    best: dict[str, str] = field(default_factory=dict)


def outbox_file(paths: SessionPaths) -> Path:
    return paths.directory / "tracking.json"


def load_outbox(paths: SessionPaths, uri: str) -> Outbox:
    """Return the outbox of the tracker at ``uri``; an empty outbox if the file is missing or names another tracker."""
    try:
        found = msgspec.json.decode(outbox_file(paths).read_bytes(), type=Outbox)
    except (OSError, msgspec.MsgspecError):
        return Outbox(uri)
    return found if found.uri == uri else Outbox(uri)


def save_outbox(paths: SessionPaths, outbox: Outbox) -> None:
    """Store ``outbox`` atomically. Raises OSError."""
    replace_file(outbox_file(paths), msgspec.json.encode(outbox))
