"""A person's wishes: written by monitors and the command line, read by the engine, answered by an event."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import AsyncIterator, Collection

from engine.commands import Command, encode_command
from engine.events import CommandHandled
from engine.session.database import connect_command, write_turn
from engine.session.errors import SessionError, of_sqlite
from engine.session.paths import SessionPaths
from engine.session.reader import SentCommand, SessionReader

POLL_S = 0.075


def send_command(paths: SessionPaths, command: Command, author: str) -> int:
    """Write a command for the engine; returns its number once it is on disk. Raises SessionError.

    It waits in the file if no engine lives: whoever sends decides whether that is wanted
    (:func:`engine.session.engine_liveness`).
    """
    connection = connect_command(paths)
    try:
        with write_turn(paths):
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


def wait_handled(paths: SessionPaths, command: int, timeout_s: float) -> CommandHandled | None:
    """The engine's answer to a command, or None if none came in time. Raises SessionError."""
    deadline = time.monotonic() + timeout_s
    with SessionReader(paths) as reader:
        while True:
            if reader.changed() and (recorded := reader.handled(command)) is not None:
                assert isinstance(recorded.event, CommandHandled)
                return recorded.event
            if time.monotonic() >= deadline:
                return None
            time.sleep(POLL_S)


class CommandInbox:
    """The engine's view of the commands: each that is not in ``handled`` once, in order.

    ``handled``: numbers that an earlier run of the engine answered (``SessionState.handled``).
    """

    def __init__(self, paths: SessionPaths, handled: Collection[int] = ()) -> None:
        self._reader = SessionReader(paths)
        self._handled = set(handled)
        self._last = 0
        self._waiting: deque[SentCommand] = deque()

    def poll(self) -> list[SentCommand]:
        """Commands that have come since the last call; costs microseconds when none has. Raises SessionError."""
        if self._reader.changed():
            for sent in self._reader.commands(self._last):
                self._last = sent.id
                if sent.id not in self._handled:
                    self._waiting.append(sent)
        found = list(self._waiting)
        self._waiting.clear()
        return found

    async def next(self) -> SentCommand:
        """Wait for the next command. Raises SessionError."""
        while not self._waiting:
            self._waiting.extend(self.poll())
            if not self._waiting:
                await asyncio.sleep(POLL_S)
        return self._waiting.popleft()

    async def __aiter__(self) -> AsyncIterator[SentCommand]:
        while True:
            yield await self.next()

    def close(self) -> None:
        self._reader.close()
