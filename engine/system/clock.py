"""The engine's clock, for timestamps of events and for the time budget.

This clock ignores adjustments to the system clock during a search. It stops while the machine sleeps, so search time
excludes that time.
"""

from __future__ import annotations

import time

_OFFSET_S = time.time() - time.monotonic()


def now() -> float:
    """Return Unix seconds: the system clock at this process's start, plus the monotonic time since then."""
    return _OFFSET_S + time.monotonic()
