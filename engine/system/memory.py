"""Total and free memory of a device or of this machine, and how to display them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from msgspec import Struct

_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


class Memory(Struct, frozen=True):
    """Free and total memory in bytes. Free memory excludes the memory that any process occupies."""

    free_bytes: int
    total_bytes: int


def host_memory(meminfo: Path = _MEMINFO, group: Path = _GROUP) -> Memory:
    """This machine's memory, or that of this process's control group if the group has a limit. Both values are 0 if
    unreadable.

    The page cache counts as free, because the system reclaims it on demand. proc(5) and the Linux documentation of
    cgroup v2 define the formats of ``meminfo`` and ``group``.
    """
    free = total = 0
    with contextlib.suppress(OSError, ValueError):
        figures = _figures(meminfo, ":")
        free, total = 1024 * figures.get("MemAvailable", 0), 1024 * figures.get("MemTotal", 0)
    with contextlib.suppress(OSError, ValueError):
        if (limit := (group / "memory.max").read_text().strip()) != "max":
            files = _figures(group / "memory.stat", "").get("inactive_file", 0)
            held = int((group / "memory.current").read_text()) - files
            free, total = min(free, max(0, int(limit) - held)), min(total, int(limit))
    return Memory(free, total)


def _figures(file: Path, after_name: str) -> dict[str, int]:
    """Parse the lines ``NAME[:] NUMBER [unit]`` of a file."""
    fields = (line.split() for line in file.read_text().splitlines())
    return {words[0].removesuffix(after_name): int(words[1]) for words in fields if len(words) > 1}


def bytes_in_words(count: float) -> str:
    """Format a byte count in decimal units with three digits: ``96 TB``, ``1.5 GB``."""
    value, units = float(count), ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")
    for unit in units[:-1]:
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} {units[-1]}"
