"""Identify the process that holds a device, from the locks of ``device_lock.py``."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from engine.evaluation.judge.device_lock import lock_path, queue_path
from engine.system.child import is_below, is_suspended, parent_of, state_of

_WORDS = 160
"""Longest command to report, in characters."""


def holders_of(device: str) -> list[tuple[int, bool]]:
    """Return the pid of each visible process that holds ``device``, and whether it holds the device exclusively.

    A lock persists as long as any copy of its descriptor is open. If the process that took the lock has ended, the
    result contains the visible processes with a copy of the descriptor. Processes in other namespaces are not visible.
    """
    return _holders(lock_path(device))


def _holders(lock: Path) -> list[tuple[int, bool]]:
    """Read /proc/locks (proc(5)): ``1: FLOCK  ADVISORY  WRITE 4711 fe:00:1837 0 EOF``.

    The line of a waiting process contains an arrow. If the process that took a lock has ended, the file still lists its
    pid, or omits the lock within a namespace.
    """
    found: list[tuple[int, bool]] = []
    with contextlib.suppress(OSError, ValueError):
        status = lock.stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for text in Path("/proc/locks").read_text().splitlines():
            fields = text.split()
            if len(fields) >= 6 and fields[1:3] == ["FLOCK", "ADVISORY"] and fields[5] == place and int(fields[4]) > 0:
                found.append((int(fields[4]), fields[3] == "WRITE"))
        living = [holder for holder in found if not _has_ended(holder[0])]
        if not living and _is_held(lock):
            return list(_inheritors(status)) or found
        return living
    return found


def _is_held(lock: Path) -> bool:
    """Test the lock by taking it for a few microseconds. A process that fails to get the lock during the test soon
    retries.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _inheritors(lock: os.stat_result) -> Iterator[tuple[int, bool]]:
    """Yield the pid of each process with a descriptor that holds the lock, and whether the lock is exclusive.

    Source: the ``lock:`` line of /proc/PID/fdinfo, proc(5).
    """
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # The process belongs to another user, or has just ended.
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.path.samestat(descriptor.stat(), lock):
                        told = (process / "fdinfo" / descriptor.name).read_text()
                        if "FLOCK" in told:
                            yield int(process.name), "WRITE" in told
                            break


def keeper_of(device: str, family: int) -> int | None:
    """Return the pid of a process that prevents ``family`` and its descendants from using ``device``.

    Returns None if there is no such process, or if ``family`` or a descendant holds the device. If no process holds
    the device, the process at the head of the queue counts as its holder.
    """
    holders = holders_of(device) or _holders(queue_path(device))
    if not holders or any(is_below(pid, family) for pid, _ in holders):
        return None
    return max(holders, key=lambda holder: holder[1])[0]


def known_as(pid: int) -> tuple[int, str]:
    """Return the process that a user would recognize as the owner of ``pid``, and that process's command.

    A judge's owner is the command or search that started the judge. The command is "" if the system does not show it.
    """
    words, stopped = _arguments(pid), pid if is_suspended(pid) else None
    while "engine.system.fast_start" in words and _is_python(above := _arguments(parent := parent_of(pid))):
        pid, words = parent, above
        stopped = pid if is_suspended(pid) else stopped
    command = _command(words)
    if _has_ended(pid):
        command = "a process that has ended; one of its children still occupies the device"
    elif stopped is not None:
        command = f"suspended; to resume it: kill -CONT {stopped}; its command: {command}"
    return pid, command


def _command(words: list[str]) -> str:
    """Format a command line as a user would type it."""
    if "engine.system.fast_start" in words:
        return "a judge whose search or command has ended"
    if "engine.cluster.worker.judging_process" in words:
        return "a search on a cluster"
    if "engine.daemon.service" in words[:-1]:
        return f"the search in {words[words.index('engine.daemon.service') + 1]}"[:_WORDS]
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if words[:2] == ["-m", "tui.cli.main"]:
        words = ["kernel-tui", *words[2:]]
    elif words and Path(words[0]).name == "kernel-tui":
        words[0] = "kernel-tui"
    return " ".join(" ".join(words).split())[:_WORDS]


def _is_python(words: list[str]) -> bool:
    return bool(words) and Path(words[0]).name.startswith(("python", "kernel-tui"))


def held_since(device: str) -> float | None:
    """Return when a process last locked ``device`` exclusively, in Unix seconds, or None if there is no lock file."""
    with contextlib.suppress(OSError):
        return lock_path(device).stat().st_mtime
    return None


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended. Reading /proc is not enough, because /proc may hide other users'
    processes.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return state_of(pid) == "Z"
