"""Run work in a forked child while this process imports the monitor.

Before the monitor opens, ``run`` checks the configuration and finds the session. This check takes as long as importing
the monitor, so both run in parallel. The check's imports stay out of the monitor's process.
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
from tui.cli.shared.common import Failure, shown_errors

T = TypeVar("T")


class Aside(Generic[T]):
    """Start ``work`` in a child process immediately.

    The child shares the terminal: it can ask questions, and it prints its own errors. The result must be picklable.
    The parent process must not have started threads yet.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._answer, answered = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._answer)
            _work(work, answered)
        os.close(answered)
        # Leave Ctrl-C to the child, which may be asking a question. If the child exits, this process exits too.
        self._interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def result(self) -> T:
        """Wait for ``work`` and return its result. If the child failed, exit with its code."""
        with os.fdopen(self._answer, "rb") as answer:
            pickled = answer.read()
        _, status = os.waitpid(self._pid, 0)
        signal.signal(signal.SIGINT, self._interrupt)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            raise Failure(
                f"{signal.Signals(-code).name} killed a child process of this command; run the command again",
                ExitCode.FAILURE,
            )
        if code:
            raise click.exceptions.Exit(code)
        return cast(T, pickle.loads(pickled))


def _work(work: Callable[[], Any], answered: int) -> NoReturn:
    """Run ``work`` in the child. End with ``os._exit``, which skips cleanup that belongs to the parent."""
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
