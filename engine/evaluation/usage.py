"""What a process holds of the machine, as the system counts it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from msgspec import Struct

from engine.evaluation.mappings import mappings_of

_COUNTED = ("VmData:", "VmPTE:", "VmSwap:", "RssAnon:", "RssShmem:", "VmSize:", "Threads:")
_SHARED = ("/dev/zero", "/memfd:", "/SYSV", "[anon_shmem:")
"""How the names of shared memory without a file begin: proc_pid_maps(5)."""


class Usage(Struct, frozen=True):
    """Bytes and threads. ``private_bytes``: what is private and writable, or holds pages that were, and page tables.
    ``shared_bytes``: shared memory whose pages it has just now; of those that it let go of nothing is said there.
    ``other_bytes``: addresses of all that is not private and writable."""

    private_bytes: int
    shared_bytes: int
    other_bytes: int
    threads: int


def usage_of(pid: int) -> Usage | None:
    """That of a process: proc_pid_status(5). None where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        # A process chooses its name, which stands there too.
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        found = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.startswith(_COUNTED)}
        data, tables, shared, size = (found[key] * 1024 for key in ("VmData", "VmPTE", "RssShmem", "VmSize"))
        # A stack is no data there, nor is what was made read-only once it was filled.
        held = (found["RssAnon"] + found["VmSwap"]) * 1024
        return Usage(max(data, held) + tables, shared, size - data, found["Threads"])
    return None


def shared_addresses(pid: int) -> int:
    """Bytes of the addresses at which a process has shared memory: it may hold so much, whatever it has let go of."""
    with contextlib.suppress(OSError):
        return sum(one.end - one.start for one in mappings_of(pid) if one.shared and one.name.startswith(_SHARED))
    return 0
