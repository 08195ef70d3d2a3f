"""Limit the output that judges and problems write to the engine's log."""

from __future__ import annotations

import contextlib
import os
import threading
import time

BURST_BYTES = 1 << 20
"""Maximum burst of output, in bytes."""
_REFILL_BYTES_S = 1 << 10
"""Long-term output rate, in bytes per second."""


class LogTap:
    """A pipe from child processes to the log. Children write to ``descriptor``; the tap drops output beyond the limit,
    and logs how many bytes it dropped.
    """

    def __init__(self, log: int = 2) -> None:
        reading, self.descriptor = os.pipe()
        self._log = log
        self._thread = threading.Thread(target=self._copy, args=(reading,), name="log-tap", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the pipe and write the rest of its content to the log.

        Call this method after the children have ended.
        """
        os.close(self.descriptor)
        self._thread.join(1.0)

    def _copy(self, reading: int) -> None:
        left, filled_at, left_out = float(BURST_BYTES), time.monotonic(), 0
        with contextlib.suppress(OSError):  # The engine's own writes report a full disk.
            while chunk := os.read(reading, 1 << 16):
                now = time.monotonic()
                left, filled_at = min(BURST_BYTES, left + (now - filled_at) * _REFILL_BYTES_S), now
                if left_out and left >= len(chunk):
                    self._write(f"\n[kernel-tui dropped {left_out:,} bytes of a problem's output]\n".encode())
                    left_out = 0
                shown = chunk[: max(0, int(left))] if not left_out else b""
                self._write(shown)
                left -= len(shown)
                left_out += len(chunk) - len(shown)
            if left_out:
                self._write(f"\n[kernel-tui dropped {left_out:,} bytes of a problem's output]\n".encode())
        with contextlib.suppress(OSError):
            while os.read(reading, 1 << 16):  # Keep draining the pipe, so that its writers never block.
                pass
        os.close(reading)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._log, data) :]
