"""Who holds a device, told from outside: the reader of locks that others take (``engine.evaluation.locks``)."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from engine.evaluation.locks import lock_path, queue_path

_WORDS = 160
"""Longest command that is told."""


def holders_of(device: str) -> list[tuple[int, bool]]:
    """Processes that hold ``device``, with whether each has it to itself; those of other namespaces are not seen.

    A lock is held as long as any copy of its descriptor is open: where the process that took it has ended, those that
    have such a copy are told, as far as they can be seen.
    """
    return _holders(lock_path(device))


def _holders(lock: Path) -> list[tuple[int, bool]]:
    """From proc(5), /proc/locks: ``1: FLOCK  ADVISORY  WRITE 4711 fe:00:1837 0 EOF``. One that waits has an arrow
    there; one whose taker has ended keeps that one's pid, or is left out within a namespace."""
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
    """Asked by taking it for microseconds: whoever wants it tries again soon."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _inheritors(lock: os.stat_result) -> Iterator[tuple[int, bool]]:
    """Processes with a descriptor through which the lock is held: proc(5), /proc/PID/fdinfo, ``lock:``."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # another user's, or ended meanwhile
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.path.samestat(descriptor.stat(), lock):
                        told = (process / "fdinfo" / descriptor.name).read_text()
                        if "FLOCK" in told:
                            yield int(process.name), "WRITE" in told
                            break


def keeper_of(device: str, family: int) -> int | None:
    """Pid of a process that keeps ``device`` from ``family`` and all that it has started; None while nobody does, or
    while one of the family has it. Who is first in the queue and does not take it keeps it too."""
    holders = holders_of(device) or _holders(queue_path(device))
    if not holders or any(is_below(pid, family) for pid, _ in holders):
        return None
    return max(holders, key=lambda holder: holder[1])[0]


def is_suspended(pid: int) -> bool:
    """Whether a signal has stopped the process ``pid``."""
    return _state_of(pid) in ("T", "t")


def is_below(pid: int, ancestor: int) -> bool:
    """Whether ``pid`` is ``ancestor`` or was started by it, directly or not."""
    for _ in range(64):
        if pid == ancestor:
            return True
        pid = _parent_of(pid)
        if pid <= 1:
            return pid == ancestor
    return False


def known_as(pid: int) -> tuple[int, str]:
    """The process that a person would know ``pid`` by, and its command: for a judge, the command or search that
    started it. The command is "" where it cannot be read."""
    words, stopped = _arguments(pid), pid if is_suspended(pid) else None
    while "engine.quickly" in words and _is_python(above := _arguments(parent := _parent_of(pid))):
        pid, words = parent, above
        stopped = pid if is_suspended(pid) else stopped
    command = _command(words)
    if _has_ended(pid):
        command = "which has ended; a process that it started has it still"
    elif stopped is not None:
        command = f"suspended, kill -CONT {stopped} lets it go on: {command}"
    return pid, command


def _command(words: list[str]) -> str:
    """A command line as a person would say it."""
    if "engine.quickly" in words:
        return "left behind by a search or command that has ended"
    if "engine.service" in words[:-1]:
        return f"the search in {words[words.index('engine.service') + 1]}"[:_WORDS]
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if words[:2] == ["-m", "tui.cli"]:
        words = ["kernel-tui", *words[2:]]
    elif words and Path(words[0]).name == "kernel-tui":
        words[0] = "kernel-tui"
    return " ".join(" ".join(words).split())[:_WORDS]


def _is_python(words: list[str]) -> bool:
    return bool(words) and Path(words[0]).name.startswith(("python", "kernel-tui"))


def held_since(device: str) -> float | None:
    """When ``device`` was last taken by somebody who has it alone, in Unix seconds; None if it never was."""
    with contextlib.suppress(OSError):
        return lock_path(device).stat().st_mtime
    return None


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _parent_of(pid: int) -> int:
    """0 where that cannot be read."""
    return int(_stat(pid)[1])


def _has_ended(pid: int) -> bool:
    """Not asked of /proc alone, which may hide the processes of others."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _state_of(pid) == "Z"


def _state_of(pid: int) -> str:
    """``T`` while it is suspended, ``Z`` when it is dead and nobody has asked for its end yet; "" where hidden."""
    return _stat(pid)[0]


def _stat(pid: int) -> list[str]:
    """State, parent and more; the command before them stands in brackets and may itself hold some."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() or ["", "0"]
    except OSError:
        return ["", "0"]
