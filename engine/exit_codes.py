"""Exit codes of the ``kernel-tui`` command and of the engine process. Part of the interface: never renumbered."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a script may conclude from the exit status.

    A command that could never work as it was given exits with 2: an option, a file of the wrong kind, a name of a
    problem, idea, kernel, move or model provider that names nothing (a session's: 3). What failed for any other reason,
    and might work at another time, exits with 1 unless it has a code of its own.

    ==  =================  ==============================================================================
    0   OK                 done as asked
    1   FAILURE            an error that has no code of its own; the message says what happened
    2   USAGE              bad arguments, a name that names nothing, or a configuration that is missing or wrong
    3   NO_SESSION         no such session, or the file is no session
    4   SESSION_LOCKED     an engine lives on the session (or another process holds its database)
    5   SESSION_NEWER      the session was written by a newer kernel-tui
    6   STORAGE            a file cannot be written: disk full, read-only, unsafe for SQLite's WAL, or failing
    7   NO_TOOLS           no compiler or no torch: nothing can be built or judged
    8   NOTHING_CORRECT    the search ended without one correct kernel
    9   NO_KEY             a model of the configuration needs a key that is not in the environment
    10  WAITING            nothing is left to do until a person has written replies (run --until-idle)
    11  NOT_OPENED         a problem could not be opened since its judge was killed; resume tries again
    130 INTERRUPTED        stopped by SIGINT or SIGTERM; the session is saved and can be resumed
    ==  =================  ==============================================================================
    """

    OK = 0
    FAILURE = 1
    USAGE = 2
    NO_SESSION = 3
    SESSION_LOCKED = 4
    SESSION_NEWER = 5
    STORAGE = 6
    NO_TOOLS = 7
    NOTHING_CORRECT = 8
    NO_KEY = 9
    WAITING = 10
    NOT_OPENED = 11
    INTERRUPTED = 130
