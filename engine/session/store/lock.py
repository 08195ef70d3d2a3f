"""The lock that shows which engine is running a session. The ``flock`` alone shows whether an engine is running; the
file's content says which engine holds it and how that engine ended.

The lock file has a fixed size, and the engine rewrites it in place. The engine can therefore record why it stopped even
if the disk is too full for an event.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import stat
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from engine.exit_codes import ExitCode
from engine.session.store.errors import UNDECODABLE, SessionError, SessionLocked, not_a_session, of_os
from engine.session.store.paths import SessionPaths
from engine.session.store.reader import STARTING, Heartbeat, SessionReader
from engine.system import clock
from engine.system.child import is_suspended

_SIZE = 4096
_ACQUIRE_S = 0.5
SUSPENDED_AFTER_S = 5.0
"""Seconds without a heartbeat after which a suspended engine counts as stalled."""
STALLED_AFTER_S = 20.0
"""Seconds without a heartbeat after which any engine counts as stalled. While the compilers of ``torch.compile`` use
all cores, a healthy engine's heartbeat can be late by more than ``SUSPENDED_AFTER_S``.
"""
_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Flags for opening the lock file. With these flags, opening a pipe does not block."""


class Holder(Struct, frozen=True, omit_defaults=True):
    """The lock file's content: the lock's owner, and how that engine ended.

    ``started`` is in Unix seconds, by the engine's clock. ``boot`` is the system's boot id, "" if unknown.
    ``exit_code`` is None for a running engine and for an engine that died suddenly. For a running engine, ``message``
    describes what blocks its work, if anything.
    """

    pid: int
    host: str
    boot: str
    started: float
    marker: str = ""
    exit_code: int | None = None
    message: str = ""


class Liveness(Struct, frozen=True):
    """The state of a session's engine: whether it is running, and how the last engine ended. ``heartbeat_age_s`` is
    None before the first heartbeat.

    ``exit_code`` and ``message`` come from the last engine; they are None and "" if that engine died suddenly. For a
    running engine, ``message`` describes what blocks its work.

    ``starting``: whether the running engine has sent no heartbeat since it recorded its start. Until the events contain
    an engine start by ``pid`` after ``started``, they describe an earlier engine. ``started``: the time at which the
    running engine took the lock, by the engine's clock, or 0 if unknown.
    """

    running: bool
    pid: int | None
    heartbeat_age_s: float | None
    exit_code: int | None = None
    message: str = ""
    starting: bool = False
    started: float = 0.0

    @property
    def stall(self) -> str | None:
        """Why a running engine is making no progress, with a remedy. None means that the engine is healthy."""
        if self.running and self.message:
            return self.message
        age = self.heartbeat_age_s
        if not self.running or age is None or age <= SUSPENDED_AFTER_S:
            return None
        if age <= STALLED_AFTER_S and (self.pid is None or not is_suspended(self.pid)):
            return None
        who = f" (pid {self.pid})" if self.pid is not None else ""
        return f"no heartbeat for {min(age, 1e9):.0f} s{who}; {remedy(self.pid)}"


def remedy(pid: int | None) -> str:
    """Return advice for a stalled engine."""
    if pid is not None and is_suspended(pid):
        return f"it is suspended; to continue it, type: kill -CONT {pid}"
    end = f"type kill -9 {pid}" if pid is not None else "end its process (engine.daemon.service)"
    return f"if this persists, {end}, then resume the session; all recorded events are safe"


class EngineLock:
    """The exclusive lock for running an engine on a session, held until ``release`` or the end of this process.

    Raises SessionLocked if another engine holds the lock, and StorageError if the lock file cannot be written.
    """

    def __init__(self, paths: SessionPaths, marker: str = "") -> None:
        self.paths = paths
        try:
            self._descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise of_os(error, paths.lock) from error
        try:
            _take(self._descriptor, paths)
            self._holder = Holder(os.getpid(), platform.node(), _boot_id(), clock.now(), marker)
            self._write()
        except OSError as error:
            os.close(self._descriptor)
            raise of_os(error, paths.lock) from error
        except SessionError:
            os.close(self._descriptor)
            raise
        self._open = True
        # A forked child would inherit the descriptor and keep the lock after this process dies.
        os.register_at_fork(after_in_child=self._drop)

    def say(self, trouble: str) -> None:
        """Record what blocks the engine's work, for callers of ``engine_liveness``; "" clears the message."""
        self._holder = msgspec.structs.replace(self._holder, message=trouble[:2000])
        if self._open:
            with contextlib.suppress(OSError):
                self._write()

    def release(self, exit_code: ExitCode = ExitCode.OK, message: str = "") -> None:
        """Record in the lock file how the engine ended, and release the lock. Idempotent."""
        if not self._open:
            return
        self._holder = msgspec.structs.replace(self._holder, exit_code=int(exit_code), message=message[:2000])
        with contextlib.suppress(OSError):  # The message is optional; closing the file releases the lock.
            self._write()
        self._drop()

    def _write(self) -> None:
        content = msgspec.json.encode(self._holder)
        if len(content) >= _SIZE:
            content = msgspec.json.encode(msgspec.structs.replace(self._holder, message=self._holder.message[:200]))
        os.pwrite(self._descriptor, content.ljust(_SIZE), 0)

    def _drop(self) -> None:
        if self._open:
            self._open = False
            os.close(self._descriptor)


def engine_liveness(paths: SessionPaths, reader: SessionReader | None = None) -> Liveness:
    """Return the state of the session's engine. Raises SessionError.

    Pass an open ``reader`` to avoid opening the database for the heartbeat. If an engine has just taken the lock, the
    function ignores the heartbeat of the earlier engine.
    """
    holder = read_holder(paths.lock)
    running = _is_held(paths.lock)
    if reader is not None:
        beat = reader.heartbeat()
    else:
        with SessionReader(paths) as own:
            beat = own.heartbeat()
    earlier = running and beat is not None and holder is not None and _is_of_earlier(beat, holder)
    age = None if beat is None or earlier else max(0.0, time.time() - beat.time)
    if running:
        trouble = holder.message if holder is not None and holder.exit_code is None else ""
        starting = earlier or (beat is not None and beat.note == STARTING)
        pid, started = (holder.pid, holder.started) if holder is not None else (None, 0.0)
        return Liveness(True, pid, age, None, trouble, starting, started)
    if holder is None:
        return Liveness(False, None, age)
    words = holder.message if holder.exit_code is not None else ""
    return Liveness(False, holder.pid, age, holder.exit_code, words)


def _is_of_earlier(beat: Heartbeat, holder: Holder) -> bool:
    """Return whether an engine before ``holder`` sent the heartbeat. In a container, both may have the same pid."""
    if beat.pid != holder.pid:
        return True
    # A starting engine passes the earlier engine's time, and an engine of version 0.1.0 passes none.
    return beat.note != STARTING and 0 < beat.engine_time < holder.started


def read_holder(lock: Path) -> Holder | None:
    """Read the lock file. Returns None if the file is missing or unreadable."""
    try:
        with os.fdopen(os.open(lock, _LOOK), "rb") as file:
            return msgspec.json.decode(file.read(_SIZE), type=Holder) if _is_file(file.fileno()) else None
    except (OSError, *UNDECODABLE):
        return None


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def _take(descriptor: int, paths: SessionPaths) -> None:
    """Take the lock. Retry for a moment, because liveness checks hold the lock for microseconds."""
    deadline = time.monotonic() + _ACQUIRE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = read_holder(paths.lock)
                raise SessionLocked(paths.directory, holder.pid if holder is not None else None) from None
            time.sleep(0.02)


def _is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, _LOOK)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise of_os(error, lock) from error
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise not_a_session(lock, "this is not a regular file, so kernel-tui did not create it")
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
