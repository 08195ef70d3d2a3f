"""The journal of a search: commit an event first, then apply it to the state, then notify listeners."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from engine.session.records.events import AnyEvent, Recorded
from engine.session.state.session_state import SessionState
from engine.session.store.writer import EventWriter


class Journal:
    """Record events in the session file. Once an event is on disk, the journal applies it to ``state``.

    If a waiting caller is canceled, the journal still records and applies its event, so that state and file agree.
    """

    def __init__(self, writer: EventWriter, state: SessionState) -> None:
        self.writer = writer
        self.state = state
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Callable[[AnyEvent], None]] = []
        self._committed: deque[tuple[Future[Recorded], asyncio.Future[None]]] = deque()
        self._is_called = False

    def listen(self, listener: Callable[[AnyEvent], None]) -> None:
        """Call ``listener`` from the event loop with each event, after the state includes the event."""
        self._listeners.append(listener)

    def put_blob(self, text: str) -> str:
        """Store text and return its digest. The text reaches the disk before any later event. Raises SessionError."""
        return self.writer.put_blob(text)

    def post(self, event: AnyEvent) -> asyncio.Future[None]:
        """Queue an event. The future completes once the state includes the event, or fails with SessionError."""
        return self._post((event,))[0]

    async def record(self, *events: AnyEvent) -> None:
        """Record events in one commit, and wait until the state includes them. Raises SessionError."""
        await self.record_all(events)

    async def record_all(self, events: Iterable[AnyEvent]) -> None:
        for waiting in self._post(events):
            await waiting

    def _post(self, events: Iterable[AnyEvent]) -> list[asyncio.Future[None]]:
        return [self._folding(written) for written in self.writer.append_all(events)]

    def _folding(self, written: Future[Recorded]) -> asyncio.Future[None]:
        folded: asyncio.Future[None] = self._loop.create_future()

        def committed(done: Future[Recorded]) -> None:
            self._committed.append((done, folded))
            if not self._is_called:  # Wake the loop once per commit, not once per event.
                self._is_called = True
                self._loop.call_soon_threadsafe(self._fold_all)

        written.add_done_callback(committed)
        return folded

    def _fold_all(self) -> None:
        self._is_called = False  # Reset this flag first, so that a commit during this loop schedules another call.
        try:
            while self._committed:
                self._fold(*self._committed.popleft())
        finally:
            if self._committed:  # An error while folding one event must not block the others.
                self._loop.call_soon(self._fold_all)

    def _fold(self, done: Future[Recorded], folded: asyncio.Future[None]) -> None:
        if (error := done.exception()) is not None:
            if not folded.cancelled():
                folded.set_exception(error)
            return
        recorded = done.result()
        self.state.apply(recorded)
        for listener in self._listeners:
            listener(recorded.event)
        if not folded.cancelled():
            folded.set_result(None)
