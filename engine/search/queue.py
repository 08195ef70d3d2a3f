"""A queue of evaluations, ordered by priority, with limited concurrency and cancellation."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable
from enum import IntEnum
from functools import partial


class Priority(IntEnum):
    """An evaluation's priority. Lower values run earlier. ``HAND`` is for requests by a person; the queue's ``width``
    does not limit them.
    """

    HAND = 0
    FIX = 1
    NORMAL = 2


class EvaluationQueue:
    """Run ``judge(variant)`` for queued variants by priority, at most ``width`` at the same time.

    The queue calls ``on_change`` after each evaluation. ``failure`` is the first error that ``judge`` raised.
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
        """Seconds since the queue became idle; 0 for a busy queue."""
        return time.monotonic() - self._busy_at if self.idle else 0.0

    def touch(self) -> None:
        """Reset ``idle_s`` to zero, because the device is busy with other work."""
        self._busy_at = time.monotonic()

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._running)

    def __contains__(self, variant: str) -> bool:
        return variant in self._queued or variant in self._running

    def put(self, variant: str, priority: Priority, round_number: int = 0) -> None:
        """Queue a variant, or raise the priority of a queued variant. Does nothing if the variant is running.

        Within a priority, earlier rounds run first, so problems advance at the same pace.
        """
        if variant in self._running:
            return
        self._queued.add(variant)
        heapq.heappush(self._heap, (priority, round_number, next(self._order), variant))
        self._start_some()

    def widen(self, width: int) -> None:
        """Change the number of evaluations that run at the same time. Running evaluations continue."""
        self._width = width
        self._start_some()

    def hold(self) -> None:
        """Stop starting evaluations. Running evaluations continue."""
        self._open = False

    def release(self) -> None:
        self._open = True
        self._start_some()

    def cancel(self, variants: Iterable[str]) -> list[asyncio.Task[None]]:
        """Remove ``variants`` from the queue, cancel their running evaluations, and return the canceled tasks."""
        cancelled = []
        for variant in variants:
            self._queued.discard(variant)
            if (task := self._running.get(variant)) is not None:
                task.cancel()
                cancelled.append(task)
        return cancelled

    def end(self) -> list[asyncio.Task[None]]:
        """Stop starting evaluations, cancel running ones, and return the canceled tasks."""
        self.hold()
        return self.cancel(list(self._running))

    def forget_queued(self) -> None:
        self._queued.clear()

    async def drain(self, timeout_s: float) -> None:
        """Stop starting evaluations, wait up to ``timeout_s`` seconds for running ones, then cancel them."""
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
            if variant not in self._queued:  # The evaluation was canceled while it was waiting in the queue.
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
