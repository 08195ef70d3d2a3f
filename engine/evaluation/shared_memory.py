"""Memory that the judge shares with a process of which it expects anything."""

from __future__ import annotations

import fcntl
import mmap
import os


def shared_memory(name: str, nbytes: int) -> tuple[int, mmap.mmap]:
    """Zeroed memory of ``nbytes``, a multiple of the page size: its descriptor and where this process has it.

    Its size is sealed: a kernel that shrinks the file would end the judge by SIGBUS.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor, mmap.mmap(descriptor, nbytes)
