"""A thread that reads new events from a source for the app's event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from engine.session.store import SessionError
from tui.view.source import Source, Update

POLL_S = 0.06
HURRIED_POLL_S = 0.015
"""Polling interval while the user is waiting for an answer, in seconds. A constant short interval would cost too much
CPU time."""
HURRY_S = 2.0
RETRY_S = 1.0


class Feed:
    """Poll ``source`` in a thread, and call ``wake`` from that thread when there are updates to ``take``."""

    def __init__(self, source: Source, wake: Callable[[], None]) -> None:
        self._source = source
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[Update] = []
        self._trouble: str | None = None
        self._hurried_until = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def hurry(self) -> None:
        """Poll more often for a while, since the user expects an answer."""
        self._hurried_until = time.monotonic() + HURRY_S

    def take(self) -> tuple[list[Update], str | None]:
        """Return all updates since the last call, in order, and the session's current error, if any."""
        with self._lock:
            updates, self._waiting = self._waiting, []
            return updates, self._trouble

    def _run(self) -> None:
        opened = False
        while not self._stop.is_set():
            try:
                if not opened:
                    self._put(self._source.open())
                    opened = True
                update = self._source.poll()
            except SessionError as error:
                self._report(error.brief)
                self._stop.wait(RETRY_S)
                continue
            self._report(None)
            if update:
                self._put(update)
            self._stop.wait(HURRIED_POLL_S if time.monotonic() < self._hurried_until else POLL_S)
        self._source.close()

    def _put(self, update: Update) -> None:
        with self._lock:
            self._waiting.append(update)
        self._wake()

    def _report(self, trouble: str | None) -> None:
        with self._lock:
            changed, self._trouble = trouble != self._trouble, trouble
        if changed:
            self._wake()
