"""What a problem file prints while it is judged: shown at the end, cleaned and cut."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from tui.sanitize import clean_line

_KEPT_BYTES, _LINES, _COLUMNS = 1 << 18, 20, 300
_ENDS_S = 1.0
"""How long after the end what is still printed is waited for."""


@contextlib.contextmanager
def printed(show: Callable[[str], None]) -> Iterator[int]:
    """A descriptor to print to. The last lines of what is printed are shown afterwards, each safe for a terminal."""
    reading, writing = os.pipe()
    kept = bytearray()

    def keep_the_end() -> None:
        while chunk := os.read(reading, 1 << 16):
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
        lines = bytes(kept).decode(errors="replace").splitlines()
        for line in [line for line in lines if line.strip()][-_LINES:]:
            show(clean_line(line, _COLUMNS))
