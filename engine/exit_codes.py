"""Exit codes of the ``kernel-tui`` command and of the engine process. The number of a code never changes."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The meaning of each exit status.

    A command exits with 2 if it can never work as typed. Examples: a bad option, a file of the wrong kind, or an
    unknown problem, idea, kernel, transformation or provider. A command that names an unknown session exits with 3.
    Other failures exit with 1 unless the table lists a code for them.

    ==  =================  ==============================================================================
    0   OK                 the command succeeded
    1   FAILURE            an error without its own code; the message has the reason
    2   USAGE              bad arguments, an unknown name, or a missing or invalid config
    3   NO_SESSION         no such session, or the file is not a session
    4   SESSION_LOCKED     an engine already runs the session, or another process holds its database
    5   SESSION_NEWER      a newer kernel-tui wrote the session
    6   STORAGE            cannot write a file: disk full, read-only, failing, or unsafe for SQLite's WAL
    7   NO_TOOLS           no compiler, PyTorch or GPU that the command needs
    8   NOTHING_CORRECT    the search ended without a correct kernel, or the judged kernel is not correct
    9   NO_KEY             the environment lacks an API key that the config needs
    10  WAITING            the search needs replies from a person (run --until-idle)
    11  NOT_OPENED         the judge was killed while it opened a problem; resume tries again
    130 INTERRUPTED        SIGINT or SIGTERM stopped the command; resume continues the saved session
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
