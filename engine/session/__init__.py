"""The session file: one SQLite database between one engine and any number of monitors.

The engine appends events (:class:`EventWriter`), monitors follow them (:class:`SessionReader`) and send commands
(:func:`send_command`), which the engine reads (:class:`CommandInbox`) and answers with an event. That an engine lives
is said by its lock (:class:`EngineLock`, :func:`engine_liveness`). Every failure is a :class:`SessionError`: one
sentence with path and remedy, and the exit code that belongs to it.
"""

from engine.session.catalogue import (
    RunState,
    SessionSummary,
    create_session,
    find_session,
    list_sessions,
    quick_check,
    summarize,
)
from engine.session.commands import CommandInbox, send_command, wait_handled
from engine.session.errors import (
    NotASession,
    SessionBusy,
    SessionDamaged,
    SessionError,
    SessionLocked,
    SessionMissing,
    SessionNewer,
    StorageError,
    UnsafeFileSystem,
)
from engine.session.filesystem import check_file_system, local_state_directory
from engine.session.lock import EngineLock, Liveness, engine_liveness
from engine.session.paths import SessionPaths, write_best
from engine.session.reader import Heartbeat, SentCommand, SessionReader
from engine.session.samples import Sample
from engine.session.writer import EventWriter

__all__ = [
    "CommandInbox",
    "EngineLock",
    "EventWriter",
    "Heartbeat",
    "Liveness",
    "NotASession",
    "RunState",
    "Sample",
    "SentCommand",
    "SessionBusy",
    "SessionDamaged",
    "SessionError",
    "SessionLocked",
    "SessionMissing",
    "SessionNewer",
    "SessionPaths",
    "SessionReader",
    "SessionSummary",
    "StorageError",
    "UnsafeFileSystem",
    "check_file_system",
    "create_session",
    "engine_liveness",
    "find_session",
    "list_sessions",
    "local_state_directory",
    "quick_check",
    "send_command",
    "summarize",
    "wait_handled",
    "write_best",
]
