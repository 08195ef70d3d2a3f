"""Read facts about a kernel's process: memory, threads, mappings, and the code that it is running. Sources:

proc_pid_status(5), proc_pid_maps(5), proc_pid_syscall(5).
"""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections import Counter
from pathlib import Path

from msgspec import Struct

from engine.evaluation.judge_policy import POLICY

_COUNTED = ("VmData:", "VmPTE:", "VmSwap:", "RssAnon:", "RssShmem:", "Threads:")


class Usage(Struct, frozen=True):
    """A process's memory in bytes, and its number of threads. Threat: resources.

    ``private_bytes``: page tables plus writable memory, or plus resident and swapped memory if that is larger.
    ``shared_bytes``: resident shared memory.
    """

    private_bytes: int
    shared_bytes: int
    threads: int


def usage_of(pid: int) -> Usage | None:
    """Return the usage of the process ``pid``, or None if /proc is not readable."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        # The process chose the name in this file, so the name may not be valid text.
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        count = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.startswith(_COUNTED)}
        # VmData excludes the stack, and memory made read-only after initialization.
        private = max(count["VmData"], count["RssAnon"] + count["VmSwap"]) + count["VmPTE"]
        return Usage(1024 * private, 1024 * count["RssShmem"], count["Threads"])
    return None


_IN_MEMORY = "/memfd:"
"""Name prefix of mappings of in-memory files (``memfd_create``)."""


class Mapping(Struct, frozen=True):
    """A range of addresses, private or ``shared``, that maps a file (``inode``, 0 for none) starting at ``offset``."""

    start: int
    end: int
    shared: bool
    offset: int
    inode: int
    name: str


def mappings_of(pid: int) -> list[Mapping]:
    """Return a process's mappings in address order, except private anonymous memory. Raises ``OSError``."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        span, permissions, offset, _, inode, *name = line.split(maxsplit=5)
        shared = permissions[3] == "s"
        if shared or inode != "0":
            start, end = (int(address, 16) for address in span.split("-"))
            found.append(Mapping(start, end, shared, int(offset, 16), int(inode), "".join(name)))
    return found


def not_its_own(mappings: list[Mapping], spans: list[tuple[int, int]], arena: int) -> str | None:
    """Return why the memory at ``spans`` (address, bytes) may not belong to the process alone, or None if it does.

    A process can map the same pages twice at no cost, which looks like a copy. ``arena``: the inode of the judge's
    buffers, which may contain results if the process maps the buffers only once. Threat: late-work.
    """
    # A file on disk, such as a library, may have the same inode number.
    buffers = [mapping for mapping in mappings if mapping.inode == arena and mapping.name.startswith(_IN_MEMORY)]
    if len({mapping.start - mapping.offset for mapping in buffers}) > 1 or not all(one.shared for one in buffers):
        return "the kernel's process mapped the judge's buffers more than once"
    for address, size in spans:
        for mapping in mappings:
            if mapping.start < address + size and address < mapping.end and mapping not in buffers:
                return f"forward's result is in memory mapped from {mapping.name or 'elsewhere'}"
    return None


def instruction_addresses(pid: int) -> list[int]:
    """Return the address of each thread's next instruction in a stopped process, except for threads in a system call.

    The result is empty if the process ends or the system denies access. Threat: library.
    """
    found, until = [], time.monotonic() + POLICY.sandbox.stop_s
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                while (words := (thread / "syscall").read_text().split()) == ["running"] and time.monotonic() < until:
                    os.sched_yield()
                if words[:1] == ["-1"]:
                    found.append(int(words[-1], 16))
    return found


def files_at(pid: int, addresses: list[int]) -> Counter[str]:
    """Count the ``addresses`` in each file that is mapped into the process. The key "" counts addresses outside any
    file. Raises ``OSError``.
    """
    mappings = mappings_of(pid)
    starts = [mapping.start for mapping in mappings]
    found: Counter[str] = Counter()
    for address in addresses:
        place = bisect.bisect_right(starts, address) - 1
        inside = place >= 0 and address < mappings[place].end
        found[mappings[place].name if inside else ""] += 1
    return found
