"""What lies behind the addresses of another process: proc_pid_maps(5)."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class Mapping(Struct, frozen=True):
    """A range of addresses: private or ``shared``, of a file (``inode``, 0 for none) from ``offset`` on."""

    start: int
    end: int
    shared: bool
    offset: int
    inode: int
    name: str


def mappings_of(pid: int) -> list[Mapping]:
    """Those of a process that are not private memory of its own, in the order of addresses. Raises ``OSError``."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        span, permissions, offset, _, inode, *name = line.split(maxsplit=5)
        if inode == "0" and permissions[3] == "p":
            continue
        start, _, end = span.partition("-")
        shared = permissions[3] == "s"
        found.append(Mapping(int(start, 16), int(end, 16), shared, int(offset, 16), int(inode), "".join(name)))
    return found


def not_its_own(mappings: list[Mapping], spans: list[tuple[int, int]], arena: int) -> str | None:
    """Why memory at ``spans`` (address, bytes) may hold what nobody wrote there, in words; None where it cannot.

    Pages of a file or of other memory can be mapped in a second place, or privately, at no cost: what is found there
    looks like a copy. ``arena``: the inode of the judge's buffers, which are mapped once, and may hold results.
    """
    places = {mapping.start - mapping.offset for mapping in mappings if mapping.inode == arena}
    if len(places) > 1 or any(not mapping.shared for mapping in mappings if mapping.inode == arena):
        return "the judge's buffers are mapped in more than one place"
    for address, size in spans:
        for mapping in mappings:
            if mapping.start < address + size and address < mapping.end and mapping.inode != arena:
                return f"what forward returned lies in memory mapped from {mapping.name or 'elsewhere'}"
    return None
