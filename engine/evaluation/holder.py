"""Who holds a device, told from outside: the reader of locks that others take (``engine.evaluation.locks``)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from engine.evaluation.locks import lock_path

_WORDS = 160
"""Longest command that is told."""


def holders_of(device: str) -> list[tuple[int, bool]]:
    """Processes that hold ``device``, with whether each has it to itself; those of other namespaces are not seen.

    From proc(5), /proc/locks: ``1: FLOCK  ADVISORY  WRITE 4711 fe:00:1837 0 EOF``. One that waits has an arrow there.
    """
    found: list[tuple[int, bool]] = []
    with contextlib.suppress(OSError, ValueError):
        status = lock_path(device).stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for text in Path("/proc/locks").read_text().splitlines():
            fields = text.split()
            if len(fields) >= 6 and fields[1:3] == ["FLOCK", "ADVISORY"] and fields[5] == place and int(fields[4]) > 0:
                found.append((int(fields[4]), fields[3] == "WRITE"))
    return found


def keeper_of(device: str, family: int) -> int | None:
    """Pid of a process that keeps ``device`` from ``family`` and all that it has started; None while nobody does, or
    while one of the family has it."""
    holders = holders_of(device)
    if not holders or any(is_below(pid, family) for pid, _ in holders):
        return None
    return max(holders, key=lambda holder: holder[1])[0]


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
    words = _arguments(pid)
    while "engine.quickly" in words and (parent := _parent_of(pid)) > 1:
        pid, words = parent, _arguments(parent)
    if "engine.service" in words[:-1]:
        return pid, f"the search in {words[words.index('engine.service') + 1]}"[:_WORDS]
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if words[:2] == ["-m", "tui.cli"]:
        words = ["kernel-tui", *words[2:]]
    elif words and Path(words[0]).name == "kernel-tui":
        words[0] = "kernel-tui"
    return pid, " ".join(" ".join(words).split())[:_WORDS]


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
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
