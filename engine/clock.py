"""The engine's own time: what its events are stamped with and its minutes are counted by.

The machine's clock may be set while a search runs, or leap over hours in which the machine slept: such a leap is no
time that was searched in.
"""

from __future__ import annotations

import time

_OFFSET_S = time.time() - time.monotonic()


def now() -> float:
    """Unix seconds as the machine's clock had them when this process began, and what has passed since."""
    return _OFFSET_S + time.monotonic()
