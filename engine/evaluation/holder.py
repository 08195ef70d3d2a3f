"""Who holds a device alone, told from outside: the reader of a lock that others take (``engine.evaluation.locks``)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from engine.evaluation.locks import lock_path


def holder_of(device: str) -> int | None:
    """Pid of the process that has ``device`` to itself, None if nobody has or that cannot be seen from here.

    From proc(5), /proc/locks: ``1: FLOCK  ADVISORY  WRITE 4711 fe:00:1837 0 EOF``; a pid of another namespace is 0.
    """
    with contextlib.suppress(OSError, ValueError):
        found = lock_path(device).stat()
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for text in Path("/proc/locks").read_text().splitlines():
            fields = text.split()
            if len(fields) >= 6 and fields[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and fields[5] == place:
                return int(fields[4]) or None
    return None


def is_below(pid: int, ancestor: int) -> bool:
    """Whether ``pid`` is ``ancestor`` or was started by it, directly or not."""
    for _ in range(64):
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
        if pid <= 1:
            return pid == ancestor
    return False
