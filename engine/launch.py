"""Start an engine's process on a session, and learn what became of it. Imports little: a monitor starts with it.

:func:`start_engine` does both at once. Whoever has something better to do than to wait, as a monitor that is not on
the screen yet, calls :func:`spawn_engine` and asks the :class:`EngineStart` now and then.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from engine.exit_codes import ExitCode
from engine.guard import VARIABLE
from engine.logind import logout_policy, surviving
from engine.session import SessionError, SessionLocked, SessionPaths, engine_liveness
from engine.session.errors import of_os
from engine.session.lock import read_holder

START_S = 60.0
_POLL_S = 0.02
_LOG_TAIL_LINES = 8
_STAMP = re.compile(r"^[\d-]+ [\d:,]+ [A-Z]+ \S+: ")


class EngineNotStarted(SessionError):
    """The engine's process ended, or said nothing, before it held its session. ``exit_code`` is its own.

    ``since``: where in the log its words begin, in bytes; what stands before is of earlier engines.
    """

    def __init__(self, paths: SessionPaths, what: str, exit_code: ExitCode, since: int = 0) -> None:
        tail = log_tail(paths, since=since).strip()
        if tail:
            last = _STAMP.sub("", tail.splitlines()[-1]).replace(f"{paths.directory}/", "")
            why, more = f": {last}", f"\n{paths.log} ends:\n{tail}"
        elif exit_code is ExitCode.STORAGE:
            why = ". It could not write to its log, not even why: the disk is full, over its quota or read-only."
            more = f" ({paths.log})"
        else:
            why, more = ". It said nothing.", f" ({paths.log})"
        super().__init__(f"{paths.directory}: {what}{why}{more}", paths.log)
        self.brief = f"{what}{why}"
        self.exit_code = exit_code


class EngineStart:
    """An engine's process on its way to its session's lock.

    It is a child of this process but in a process session of its own; nobody needs to wait for it. What happens once
    it holds the lock (no compiler, a problem that raises) is told by its events and by ``engine_liveness``.
    """

    def __init__(
        self, paths: SessionPaths, process: subprocess.Popen[bytes], marker: str, timeout_s: float, log_begin: int
    ) -> None:
        self.paths = paths
        self._process = process
        self._marker = marker
        self._timeout_s = timeout_s
        self._log_begin = log_begin
        self._deadline = time.monotonic() + timeout_s
        self.under_way = True
        """Whether it is still undecided if the engine gets its session, as far as ``poll`` has looked."""

    def poll(self) -> int | None:
        """The engine's process id once it holds its session's lock, None while it is on its way.

        Raises SessionLocked if another engine was faster, EngineNotStarted with the end of the log if it ended, or
        took longer than its time.
        """
        status = self._process.poll()
        holder = read_holder(self.paths.lock)  # after the status: an engine may hold the lock and end in one moment
        if holder is not None and holder.marker == self._marker:
            self.under_way = False
            return holder.pid
        if status is not None:
            self.under_way = False
            code = ExitCode(status) if status in set(ExitCode) else ExitCode.FAILURE
            if code is ExitCode.SESSION_LOCKED:
                raise SessionLocked(self.paths.directory, holder.pid if holder is not None else None)
            what = f"the engine ended at its start (status {status})"
            raise EngineNotStarted(self.paths, what, code, self._log_begin)
        if time.monotonic() > self._deadline:
            self.under_way = False
            self._process.kill()
            what = f"the engine did not take its session in {self._timeout_s:g} s"
            raise EngineNotStarted(self.paths, what, ExitCode.FAILURE, self._log_begin)
        return None

    def wait(self) -> int:
        """The engine's process id once it holds its session's lock. Raises as ``poll`` does."""
        while (pid := self.poll()) is None:
            time.sleep(_POLL_S)
        return pid


def spawn_engine(paths: SessionPaths, timeout_s: float = START_S) -> EngineStart:
    """Start an engine's process on a session, new or to be resumed, without waiting for it.

    Commands sent from now on are for the new engine, also those that it finds when it reads its first.
    Raises SessionLocked if an engine lives on the session, SessionError for a session that cannot be opened.
    """
    paths = SessionPaths.at(paths.directory)
    living = engine_liveness(paths)
    if living.running:
        raise SessionLocked(paths.directory, living.pid)
    marker = uuid.uuid4().hex
    command = [sys.executable, "-P", "-m", "engine.service", str(paths.directory), marker, repr(time.time())]
    try:
        log = paths.log.open("ab")
    except OSError as error:
        raise of_os(error, paths.log) from error
    with log:
        begin = log.tell()
        process = subprocess.Popen(
            surviving(command, logout_policy()),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=paths.directory,
            env=_environment(marker),
        )
    threading.Thread(target=process.wait, name="engine-reaper", daemon=True).start()
    return EngineStart(paths, process, marker, timeout_s, begin)


def start_engine(paths: SessionPaths, timeout_s: float = START_S) -> int:
    """Start an engine on a session, new or to be resumed; returns its process id once it holds the session's lock.

    Raises as ``spawn_engine`` and ``EngineStart.poll`` do.
    """
    return spawn_engine(paths, timeout_s).wait()


def log_tail(paths: SessionPaths, lines: int = _LOG_TAIL_LINES, since: int = 0) -> str:
    """The last lines of the engine's log, none from before byte ``since``; "" if there are none."""
    try:
        with paths.log.open("rb") as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - 16384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def _environment(marker: str) -> dict[str, str]:
    """The engine's environment: marked for its guard, and able to import this package from a checkout."""
    root = str(Path(__file__).resolve().parents[1])
    known = os.environ.get("PYTHONPATH", "")
    path = root if not known else os.pathsep.join((root, known))
    return {**os.environ, VARIABLE: marker, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
