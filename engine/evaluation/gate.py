"""What holds queued calls back on a GPU until the judge lets them run."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys


class Gate:
    """A word in memory that runner and GPU see: what waits for it runs once it is set (``runner/cuda.py``)."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("gate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, mmap.PAGESIZE)
        # A kernel that shrinks the file would end the judge by SIGBUS.
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._map = mmap.mmap(self.descriptor, mmap.PAGESIZE)
        self._number = 0

    def next(self) -> int:
        """The number that opens it next."""
        self._number += 1
        return self._number

    def open(self) -> None:
        self._map[:4] = self._number.to_bytes(4, sys.byteorder)

    def close(self) -> None:
        """Idempotent."""
        if self.descriptor >= 0:
            self._map.close()
            os.close(self.descriptor)
            self.descriptor = -1
