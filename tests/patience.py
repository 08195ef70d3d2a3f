"""How long tests wait for what must happen.

A quiet machine needs a fraction of this, a busy one several times as long as a quiet one. Only a failing test waits for
the whole time. A test that asserts how quickly something happens sets its own limit.
"""

from __future__ import annotations

PATIENCE_S = 300.0
TRIES = int(PATIENCE_S / 0.05)
"""The number of attempts in that time, with pauses of 0.05 s in between."""
