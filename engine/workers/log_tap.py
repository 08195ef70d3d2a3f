"""What judges and the problems in them print, on its way to the engine's log: a problem may print without end."""

from __future__ import annotations

import contextlib
import os
import threading
import time

BURST_BYTES = 1 << 20
"""What may be printed at once."""
_REFILL_BYTES_S = 1 << 10
"""What may be printed for ever."""


class LogTap:
    """``descriptor`` is for children to print to. What exceeds the allowance is left out, and that is said."""

    def __init__(self, log: int = 2) -> None:
        reading, self.descriptor = os.pipe()
        self._log = log
        self._thread = threading.Thread(target=self._copy, args=(reading,), name="log-tap", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """To be called when the children have ended."""
        os.close(self.descriptor)
        self._thread.join(1.0)

    def _copy(self, reading: int) -> None:
        left, filled_at, left_out = float(BURST_BYTES), time.monotonic(), 0
        with contextlib.suppress(OSError):  # a full disk: the engine's own writes say so
            while chunk := os.read(reading, 1 << 16):
                now = time.monotonic()
                left, filled_at = min(BURST_BYTES, left + (now - filled_at) * _REFILL_BYTES_S), now
                if left_out and left >= len(chunk):
                    self._write(f"\n[{left_out:,} bytes that a problem printed are left out]\n".encode())
                    left_out = 0
                shown = chunk[: max(0, int(left))] if not left_out else b""
                self._write(shown)
                left -= len(shown)
                left_out += len(chunk) - len(shown)
            if left_out:
                self._write(f"\n[{left_out:,} bytes that a problem printed are left out]\n".encode())
        with contextlib.suppress(OSError):
            while os.read(reading, 1 << 16):  # nobody may have to wait for a reader
                pass
        os.close(reading)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._log, data) :]
