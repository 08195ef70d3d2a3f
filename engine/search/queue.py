"""The queue of evaluations: who is judged next, how many at once, and how one is taken out of it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable
from enum import IntEnum
from functools import partial


class Priority(IntEnum):
    """Lower is sooner. A person waits for ``HAND``: it also starts when all places are taken."""

    HAND = 0
    FIX = 1
    NORMAL = 2


class EvaluationQueue:
    """Runs ``judge(variant)`` for queued variants, ``width`` at once, the most urgent first.

    ``on_change`` is called after every end. ``failure`` is the first error that a ``judge`` raised.
    """

    def __init__(self, judge: Callable[[str], Awaitable[None]], width: int, on_change: Callable[[], None]) -> None:
        self._judge = judge
        self._width = width
        self._on_change = on_change
        self._heap: list[tuple[Priority, int, int, str]] = []
        self._order = itertools.count()
        self._queued: set[str] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._open = True
        self._busy_at = time.monotonic()
        self.failure: BaseException | None = None

    @property
    def idle(self) -> bool:
        return not self._queued and not self._running

    @property
    def idle_s(self) -> float:
        """Seconds since it last had anything to do; 0 while it has."""
        return time.monotonic() - self._busy_at if self.idle else 0.0

    def touch(self) -> None:
        """The device is busy with something else: start counting ``idle_s`` anew."""
        self._busy_at = time.monotonic()

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._running)

    def __contains__(self, variant: str) -> bool:
        return variant in self._queued or variant in self._running

    def put(self, variant: str, priority: Priority, round_number: int = 0) -> None:
        """Queue a variant, or make one that is queued already more urgent. One that runs stays as it is.

        Within a priority earlier rounds come first, so that several problems advance in step.
        """
        if variant in self._running:
            return
        self._queued.add(variant)
        heapq.heappush(self._heap, (priority, round_number, next(self._order), variant))
        self._start_some()

    def hold(self) -> None:
        """Start nothing more; what runs finishes."""
        self._open = False

    def release(self) -> None:
        self._open = True
        self._start_some()

    def cancel(self, variants: Iterable[str]) -> list[asyncio.Task[None]]:
        """Take variants out: the queued are forgotten, of the running the cancelled tasks are returned."""
        cancelled = []
        for variant in variants:
            self._queued.discard(variant)
            if (task := self._running.get(variant)) is not None:
                task.cancel()
                cancelled.append(task)
        return cancelled

    def forget_queued(self) -> None:
        self._queued.clear()

    async def drain(self, timeout_s: float) -> None:
        """Let what runs finish for at most ``timeout_s``, then cancel it; queued variants are not started."""
        self.hold()
        self.forget_queued()
        if running := list(self._running.values()):
            _, late = await asyncio.wait(running, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _start_some(self) -> None:
        while self._open and self._heap:
            priority, _, _, variant = self._heap[0]
            if variant not in self._queued:  # taken out while it waited
                heapq.heappop(self._heap)
                continue
            if len(self._running) >= self._width and priority is not Priority.HAND:
                return
            heapq.heappop(self._heap)
            self._queued.discard(variant)
            task = asyncio.ensure_future(self._judge(variant))
            self._running[variant] = task
            task.add_done_callback(partial(self._ended, variant))

    def _ended(self, variant: str, task: asyncio.Task[None]) -> None:
        if self._running.get(variant) is task:
            del self._running[variant]
        self._busy_at = time.monotonic()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = self.failure or error
        self._start_some()
        self._on_change()
