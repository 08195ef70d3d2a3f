"""Which pages of another process nobody has written: proc_pid_pagemap(5)."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch

_EXCLUSIVE, _SHARED, _SWAPPED = 1 << 56, 1 << 61, 1 << 62
"""Of a page: mapped by nobody else, of a file or shared, swapped out. The system's page of zeros is none of that."""


def unwritten_bytes(pid: int, address: int, size: int) -> int:
    """How many bytes there lie in pages that are zero because nobody has written them. 0 where the system does not say.

    Whole pages only; one that a parent and its child share counts as well.
    """
    first, last = -(-address // mmap.PAGESIZE), (address + size) // mmap.PAGESIZE
    if first >= last:
        return 0
    try:
        with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as file:
            entries = torch.frombuffer(
                bytearray(os.pread(file.fileno(), 8 * (last - first), 8 * first)), dtype=torch.int64
            )
    except (OSError, ValueError):  # ValueError: nothing to read there
        return 0
    return int(((entries & (_EXCLUSIVE | _SHARED | _SWAPPED)) == 0).sum()) * mmap.PAGESIZE
