"""Work in a forked child while this process gets something else ready.

What must be found out before the monitor may open (is the configuration sound, is there a session to go on with) takes
as long as importing the monitor. On two cores they take that time together, and what checking a configuration imports
never enters the monitor's process.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar, cast

import click

from engine.exit_codes import ExitCode
from tui.commands.common import Failure, shown_errors

T = TypeVar("T")


class Aside(Generic[T]):
    """``work`` in a child of this process, begun at once. The child has this process's terminal: it may ask there, and
    an error of it is a line there. What it returns must be picklable. This process must have no other thread yet."""

    def __init__(self, work: Callable[[], T]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._answer, answered = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._answer)
            _work(work, answered)
        os.close(answered)
        # Ctrl-C is for the child, which may be asking a question; its end is ours.
        self._interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def result(self) -> T:
        """What ``work`` returned, once it is done. If it has failed, ends this command with its exit code."""
        with os.fdopen(self._answer, "rb") as answer:
            pickled = answer.read()
        _, status = os.waitpid(self._pid, 0)
        signal.signal(signal.SIGINT, self._interrupt)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            raise Failure(f"a process of this command was killed by {signal.Signals(-code).name}", ExitCode.FAILURE)
        if code:
            raise click.exceptions.Exit(code)
        return cast(T, pickle.loads(pickled))


def _work(work: Callable[[], Any], answered: int) -> NoReturn:
    """The child. It leaves without the cleaning up of the process that it is a copy of."""
    code = int(ExitCode.FAILURE)
    try:
        with shown_errors():
            pickled = pickle.dumps(work())
        with os.fdopen(answered, "wb") as answer:
            answer.write(pickled)
        code = int(ExitCode.OK)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
