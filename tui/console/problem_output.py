"""Capture what a problem file prints during judging. At the end, show the last lines, made safe for a terminal."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from tui.text.sanitize import clean_line

_KEPT_BYTES, _LINES, _COLUMNS = 1 << 18, 8, 200
_ENDS_S = 1.0
"""Time limit for reading the remaining output after judging, in seconds."""


@contextlib.contextmanager
def printed(show: Callable[[str], None]) -> Iterator[int]:
    """Yield a file descriptor to print to. Afterwards, ``show`` gets the last lines printed, each safe for a
    terminal.
    """
    reading, writing = os.pipe()
    kept, count = bytearray(), 0

    def keep_the_end() -> None:
        nonlocal count
        while chunk := os.read(reading, 1 << 16):
            count += len(chunk)
            kept.extend(chunk)
            del kept[:-_KEPT_BYTES]
        os.close(reading)

    reader = threading.Thread(target=keep_the_end, name="printed", daemon=True)
    reader.start()
    try:
        yield writing
    finally:
        os.close(writing)
        reader.join(_ENDS_S)
        lines = [line for line in bytes(kept).decode(errors="replace").splitlines() if line.strip()]
        cut = len(lines) > _LINES or count > len(kept)
        if lines:
            show(f"the problem printed{f' {count:,} bytes; the last lines are' if cut else ''}:")
        for line in lines[-_LINES:]:
            show(f"  {clean_line(line, _COLUMNS)}")
