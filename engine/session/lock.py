"""Who lives on a session. The lock is the truth; the pid and the words in its file are for people.

The file has one fixed size and is written in place, so that an engine ended by a full disk can still leave its last
words where there is no room for an event.
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
from engine.session.errors import UNDECODABLE, SessionError, SessionLocked, not_a_session, of_os
from engine.session.paths import SessionPaths
from engine.session.reader import SessionReader

_SIZE = 4096
_ACQUIRE_S = 0.5
STALLED_AFTER_S = 5.0
"""Seconds without a heartbeat after which a living engine is called stalled."""
_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""A pipe in the file's place must not be waited for."""


class Holder(Struct, frozen=True, omit_defaults=True):
    """What the lock file says: who took it and when, and once the engine has ended, how.

    ``started``: Unix seconds. ``boot``: the kernel's boot id, "" where there is none. ``exit_code`` is None while the
    engine lives and after a sudden death; ``message`` is then what keeps it from its work, "" while nothing does.
    """

    pid: int
    host: str
    boot: str
    started: float
    marker: str = ""
    exit_code: int | None = None
    message: str = ""


class Liveness(Struct, frozen=True):
    """Whether an engine lives on a session. ``heartbeat_age_s`` is None before its first heartbeat.

    ``exit_code`` and ``message`` are the last engine's own words, None and "" if it died suddenly; of one that lives,
    ``message`` is what keeps it from its work.
    """

    running: bool
    pid: int | None
    heartbeat_age_s: float | None
    exit_code: int | None = None
    message: str = ""

    @property
    def stall(self) -> str | None:
        """That the engine lives and does nothing, why or for how long, and what to do; None while it is well."""
        if self.running and self.message:
            return self.message
        age = self.heartbeat_age_s
        if not self.running or age is None or age <= STALLED_AFTER_S:
            return None
        who = f" (pid {self.pid})" if self.pid is not None else ""
        return f"no sign of life for {min(age, 1e9):.0f} s{who}; {remedy(self.pid)}"


def remedy(pid: int | None) -> str:
    """What a person can do about an engine that has stalled."""
    if pid is not None and _is_suspended(pid):
        return f"it is suspended: kill -CONT {pid} lets it go on"
    end = f"kill -9 {pid}" if pid is not None else "end its process (engine.service)"
    return f"if that lasts: {end}, then resume it; what is recorded stays"


class EngineLock:
    """Exclusive right to run an engine on a session, for as long as this process lives.

    Raises SessionLocked if another engine has it, StorageError if the lock file cannot be written.
    """

    def __init__(self, paths: SessionPaths, marker: str = "") -> None:
        self.paths = paths
        try:
            self._descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise of_os(error, paths.lock) from error
        try:
            _take(self._descriptor, paths)
            self._holder = Holder(os.getpid(), platform.node(), _boot_id(), time.time(), marker)
            self._write()
        except OSError as error:
            os.close(self._descriptor)
            raise of_os(error, paths.lock) from error
        except SessionError:
            os.close(self._descriptor)
            raise
        self._open = True
        # A forked child shares the lock through its copy of the descriptor and would hold it after our death.
        os.register_at_fork(after_in_child=self._drop)

    def say(self, trouble: str) -> None:
        """Tell those who ask for the engine's liveness what keeps it from its work; "" when nothing does any more."""
        self._holder = msgspec.structs.replace(self._holder, message=trouble[:2000])
        if self._open:
            with contextlib.suppress(OSError):
                self._write()

    def release(self, exit_code: ExitCode = ExitCode.OK, message: str = "") -> None:
        """Give the lock back, leaving how the engine ended in its file. Idempotent."""
        if not self._open:
            return
        self._holder = msgspec.structs.replace(self._holder, exit_code=int(exit_code), message=message[:2000])
        with contextlib.suppress(OSError):  # the words are a courtesy; the close below is what releases the lock
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
    """Ask the lock. ``reader``, if one is open, spares opening the database for the heartbeat. Raises SessionError.

    The heartbeat of an earlier engine says nothing of one that has only just taken the lock.
    """
    holder = read_holder(paths.lock)
    running = _is_held(paths.lock)
    if reader is not None:
        beat = reader.heartbeat()
    else:
        with SessionReader(paths) as own:
            beat = own.heartbeat()
    earlier = running and beat is not None and holder is not None and beat.pid != holder.pid
    age = None if beat is None or earlier else max(0.0, time.time() - beat.time)
    if running:
        trouble = holder.message if holder is not None and holder.exit_code is None else ""
        return Liveness(True, holder.pid if holder is not None else None, age, None, trouble)
    if holder is None:
        return Liveness(False, None, age)
    words = holder.message if holder.exit_code is not None else ""
    return Liveness(False, holder.pid, age, holder.exit_code, words)


def read_holder(lock: Path) -> Holder | None:
    """What the lock file says, None if there is no such file or it says nothing readable."""
    try:
        with os.fdopen(os.open(lock, _LOOK), "rb") as file:
            return msgspec.json.decode(file.read(_SIZE), type=Holder) if _is_file(file.fileno()) else None
    except (OSError, *UNDECODABLE):
        return None


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def _take(descriptor: int, paths: SessionPaths) -> None:
    """Take the lock; tries for a moment, because whoever asks for liveness holds it for microseconds."""
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
            raise not_a_session(lock, "is no regular file, so this is no session of kernel-tui")
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _is_suspended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
