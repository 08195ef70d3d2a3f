"""The session file: one SQLite database, shared by one engine and any number of monitors.

The engine appends events (:class:`EventWriter`). Monitors follow the events (:class:`SessionReader`) and send requests
(:func:`send_request`). The engine reads the requests (:class:`RequestInbox`) and answers each request with an event. A
lock shows whether an engine is running (:class:`EngineLock`, :func:`engine_liveness`). Readers also open packed copies
(:func:`pack_session`). Every failure raises a :class:`SessionError`, whose message gives the path and a remedy.
"""

from engine.session.store.errors import (
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
from engine.session.store.filesystem import check_file_system, local_state_directory
from engine.session.store.lock import EngineLock, Liveness, engine_liveness
from engine.session.store.paths import SessionPaths, sessions_in, write_best
from engine.session.store.reader import Heartbeat, SentRequest, SessionReader
from engine.session.store.request_queue import RequestInbox, send_request, wait_handled, was_told_to_stop
from engine.session.store.samples import Sample
from engine.session.store.session_directory import (
    STOPPED_WORDS,
    RunState,
    SessionSummary,
    create_session,
    find_session,
    list_sessions,
    quick_check,
    stopped_words,
    summarize,
)
from engine.session.store.shipped.bundled import SessionBundled, is_bundled, must_not_be_bundled, own_copy
from engine.session.store.shipped.packing import pack_session
from engine.session.store.writer import EventWriter

__all__ = [
    "STOPPED_WORDS",
    "EngineLock",
    "EventWriter",
    "Heartbeat",
    "Liveness",
    "NotASession",
    "RequestInbox",
    "RunState",
    "Sample",
    "SentRequest",
    "SessionBundled",
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
    "is_bundled",
    "list_sessions",
    "local_state_directory",
    "must_not_be_bundled",
    "own_copy",
    "pack_session",
    "quick_check",
    "send_request",
    "sessions_in",
    "stopped_words",
    "summarize",
    "wait_handled",
    "was_told_to_stop",
    "write_best",
]
