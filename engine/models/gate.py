"""How many calls of a model are in flight at once: as many as configured, fewer while its server says "too many".

Additive increase, multiplicative decrease, as TCP does it (Jacobson, "Congestion avoidance and control", 1988): an
answer of 429 halves the width, every full width of replies adds one. And as with TCP, calls that begin together are
answered together, and wait for each other again and again: so they are paced (Aggarwal, Savage and Anderson,
"Understanding the performance of TCP pacing", 2000).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator

APART_S = 0.002
"""Between the beginnings of two calls: some more than the processor time of one. 64 calls of 200 ms that began together
took 14 % longer each, with this 3 %."""


class Gate:
    """First come, first served. ``most``: the configured width; ``width``: the present one, 1 at least."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.width = float(most)
        self.inside = 0
        self._closed_until = 0.0
        self._halved_at = 0.0
        self._next_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @contextlib.asynccontextmanager
    async def enter(self) -> AsyncIterator[float]:
        """Wait for a place. Gives the time of entry (``time.monotonic``), for :meth:`refused`."""
        try:
            while (pause := self._closed_until - time.monotonic()) > 0 or self.inside >= int(self.width):
                if pause > 0:
                    await asyncio.sleep(pause)
                else:
                    place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(place)
                    await place
        except asyncio.CancelledError:
            self._wake()  # the place that it may have been given goes to the next
            raise
        self.inside += 1
        try:
            now = time.monotonic()
            begins = max(now, self._next_at)
            self._next_at = begins + APART_S
            if begins > now:
                await asyncio.sleep(begins - now)
            yield time.monotonic()
        finally:
            self.inside -= 1
            self._wake()

    def refused(self, entered: float, pause_s: float) -> None:
        """The server answered 429: nobody enters for ``pause_s``. Calls that were in flight together halve it once."""
        now = time.monotonic()
        self._closed_until = max(self._closed_until, now + pause_s)
        if entered >= self._halved_at:
            self.width = max(1.0, self.width / 2)
            self._halved_at = now

    def answered(self) -> None:
        """A reply came."""
        self.width = min(float(self.most), self.width + 1.0 / self.width)

    def _wake(self) -> None:
        free = int(self.width) - self.inside
        while self._waiting and free > 0:
            if not (place := self._waiting.popleft()).done():
                place.set_result(None)
                free -= 1
