"""Start an engine process for a session, and report whether it started. The module imports little, so that the monitor
starts fast.

:func:`start_engine` starts the process and waits. Code that must not block, such as a monitor's startup, calls
:func:`spawn_engine` and polls the returned :class:`EngineStart`.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
import uuid

from engine.daemon.logind import logout_policy, surviving
from engine.exit_codes import ExitCode
from engine.session.store import SessionError, SessionLocked, SessionPaths, engine_liveness, must_not_be_bundled
from engine.session.store.errors import of_os
from engine.session.store.lock import read_holder
from engine.session.store.paths import must_have_config
from engine.system.guard import VARIABLE
from engine.system.python_process import python_command, python_path

START_S = 60.0
UNATTENDED = "unattended"
"""The last command-line argument of an engine that runs unattended."""
_POLL_S = 0.02
_LOG_TAIL_LINES = 8
_STAMP = re.compile(r"^[\d-]+ [\d:,]+ [A-Z]+ \S+: ")


class EngineNotStarted(SessionError):
    """The engine process ended or timed out before it locked its session. ``exit_code`` is the process's exit status.

    ``since`` is the byte offset in the log at which this engine's output begins.
    """

    def __init__(self, paths: SessionPaths, what: str, exit_code: ExitCode, since: int = 0) -> None:
        tail = log_tail(paths, since=since).strip()
        if tail:
            last = _STAMP.sub("", tail.splitlines()[-1]).replace(f"{paths.directory}/", "")
            why, more = f": {last}", f"\n{paths.log} ends with:\n{tail}"
        elif exit_code is ExitCode.STORAGE:
            why = ". The engine could not write its log, because the disk is full, over quota or read-only."
            more = f" ({paths.log})"
        else:
            why, more = ". The engine's log is empty.", f" ({paths.log})"
        super().__init__(f"{paths.directory}: {what}{why}{more}", paths.log)
        self.brief = f"{what}{why}"
        self.exit_code = exit_code


class EngineStart:
    """An engine process that has not yet locked its session.

    The process is a child of the current process, but has its own process session. Callers need not wait for the
    process. After the engine locks the session, its events and ``engine_liveness`` report later failures, such as a
    missing compiler.
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
        """Whether the engine was still starting at the last ``poll``."""

    def poll(self) -> int | None:
        """Return the engine's process id if it has locked its session, or None if it is still starting.

        Raises:
            SessionLocked: Another engine locked the session first.
            EngineNotStarted: The process ended or timed out. The message includes the end of the log.
        """
        status = self._process.poll()
        # Read the lock after the exit status, because an engine may lock its session and end between the two reads.
        holder = read_holder(self.paths.lock)
        if holder is not None and holder.marker == self._marker:
            self.under_way = False
            return holder.pid
        if status is not None:
            self.under_way = False
            code = ExitCode(status) if status in set(ExitCode) else ExitCode.FAILURE
            if code is ExitCode.SESSION_LOCKED:
                raise SessionLocked(self.paths.directory, holder.pid if holder is not None else None)
            what = f"the engine ended during startup (status {status})"
            raise EngineNotStarted(self.paths, what, code, self._log_begin)
        if time.monotonic() > self._deadline:
            self.under_way = False
            self._process.kill()
            what = f"the engine did not lock its session within {self._timeout_s:g} s"
            raise EngineNotStarted(self.paths, what, ExitCode.FAILURE, self._log_begin)
        return None

    def wait(self) -> int:
        """Wait until the engine has locked its session; return its process id. Raises the exceptions of ``poll``."""
        while (pid := self.poll()) is None:
            time.sleep(_POLL_S)
        return pid


def spawn_engine(paths: SessionPaths, timeout_s: float = START_S, *, unattended: bool = False) -> EngineStart:
    """Start an engine process for a new or stored session, and return without waiting.

    The new engine also handles requests that arrive during its startup. ``unattended`` means that no user is watching
    the search. An unattended engine ends instead of waiting for kernels that only a user could add.

    Raises:
        SessionBundled: The session ships with kernel-tui.
        SessionLocked: Another engine is running the session.
        ConfigMissing: The session's copy of the configuration is missing.
        SessionError: The session cannot be opened.
    """
    paths = SessionPaths.at(paths.directory)
    must_not_be_bundled(paths)
    living = engine_liveness(paths)
    if living.running:
        raise SessionLocked(paths.directory, living.pid)
    must_have_config(paths)
    marker = uuid.uuid4().hex
    command = python_command("engine.daemon.service", str(paths.directory), marker, repr(time.time()))
    command += [UNATTENDED] if unattended else []
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


def start_engine(paths: SessionPaths, timeout_s: float = START_S, *, unattended: bool = False) -> int:
    """Start an engine for a new or stored session, wait until it locks the session, and return its process id.

    Raises the same exceptions as ``spawn_engine`` and ``EngineStart.poll``.
    """
    return spawn_engine(paths, timeout_s, unattended=unattended).wait()


def log_tail(paths: SessionPaths, lines: int = _LOG_TAIL_LINES, since: int = 0) -> str:
    """Return the last lines of the engine's log after byte ``since``, or ""."""
    try:
        with paths.log.open("rb") as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - 16384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def _environment(marker: str) -> dict[str, str]:
    """Build the engine's environment: the guard's marker, and a ``PYTHONPATH`` for use from a checkout."""
    return {**os.environ, VARIABLE: marker, "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"}
