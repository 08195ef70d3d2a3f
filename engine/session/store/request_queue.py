"""Queue requests from a person. Monitors and the command line write requests; the engine reads them and answers with
events.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import AsyncIterator, Collection

from engine.session.records.events import CommandHandled, EngineStarted
from engine.session.records.requests import Command, Stop, encode_command
from engine.session.store.database import connect_command, write_lock
from engine.session.store.errors import SessionError, of_sqlite
from engine.session.store.lock import engine_liveness
from engine.session.store.paths import SessionPaths
from engine.session.store.reader import SentRequest, SessionReader
from engine.session.store.shipped.bundled import must_not_be_bundled

POLL_S = 0.075


def send_request(paths: SessionPaths, command: Command, author: str) -> int:
    """Write a request for the engine, and return the request's number once it is on disk. Raises SessionError.

    If no engine is running, the request waits in the file for the next engine. To avoid this, check
    :func:`engine.session.store.engine_liveness` first.
    """
    must_not_be_bundled(paths)
    connection = connect_command(paths)
    try:
        with write_lock(paths):
            try:
                cursor = connection.execute(
                    "INSERT INTO command (time, author, json) VALUES (?, ?, ?)",
                    (time.time(), author, encode_command(command).decode()),
                )
                return cursor.lastrowid or 0
            except sqlite3.Error as error:
                raise of_sqlite(error, paths.database) from error
            finally:
                connection.close()
    except SessionError:
        connection.close()
        raise


def wait_handled(
    paths: SessionPaths, command: int, timeout_s: float, *, needs_engine: bool = False
) -> CommandHandled | None:
    """Wait for the engine's answer to a request. Returns None if no answer arrives in time. Raises SessionError.

    ``needs_engine``: stop waiting when no engine is running.
    """
    deadline = time.monotonic() + timeout_s
    with SessionReader(paths) as reader:
        while True:
            may_answer = not needs_engine or engine_liveness(paths, reader).running
            if reader.changed() and (recorded := reader.handled(command)) is not None:
                assert isinstance(recorded.event, CommandHandled)
                return recorded.event
            if time.monotonic() >= deadline or not may_answer:
                return None
            time.sleep(POLL_S)


def was_told_to_stop(paths: SessionPaths) -> bool:
    """Return whether the newest engine has accepted a request to stop immediately. Raises SessionError."""
    with SessionReader(paths) as reader:
        stops = [sent.id for sent in reader.commands() if sent.command == Stop()]
        answers = [recorded for stop in stops if (recorded := reader.handled(stop)) is not None]
        agreed = [one.seq for one in answers if isinstance(one.event, CommandHandled) and one.event.ok]
        return bool(agreed) and not any(isinstance(one.event, EngineStarted) for one in reader.read(max(agreed)))


class RequestInbox:
    """The engine's queue of requests. The queue returns each unanswered request once, in order.

    ``handled`` lists the numbers of requests that an earlier engine answered (``SessionState.handled``).
    """

    def __init__(self, paths: SessionPaths, handled: Collection[int] = ()) -> None:
        self._reader = SessionReader(paths)
        self._handled = set(handled)
        self._last = 0
        self._waiting: deque[SentRequest] = deque()

    def poll(self) -> list[SentRequest]:
        """Return requests that arrived since the last call. Without new requests, the call takes microseconds. Raises
        SessionError.
        """
        if self._reader.changed():
            for sent in self._reader.commands(self._last):
                self._last = sent.id
                if sent.id not in self._handled:
                    self._waiting.append(sent)
        found = list(self._waiting)
        self._waiting.clear()
        return found

    async def next(self) -> SentRequest:
        """Wait for the next request. Raises SessionError."""
        while not self._waiting:
            self._waiting.extend(self.poll())
            if not self._waiting:
                await asyncio.sleep(POLL_S)
        return self._waiting.popleft()

    async def __aiter__(self) -> AsyncIterator[SentRequest]:
        while True:
            yield await self.next()

    def close(self) -> None:
        self._reader.close()
