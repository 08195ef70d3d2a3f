"""What holds queued calls back on a GPU until the judge lets them run."""

from __future__ import annotations

import mmap
import os
import sys

from engine.evaluation.shared_memory import shared_memory


class Gate:
    """A word in memory that runner and GPU see: what waits for it runs once it is set (``runner/cuda.py``)."""

    def __init__(self) -> None:
        self.descriptor, self._map = shared_memory("gate", mmap.PAGESIZE)
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
