"""The monitor's side of the session file: a read-only connection that follows what the engine writes."""

from __future__ import annotations

import gc
import sqlite3
import zlib
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Any

from msgspec import Struct

from engine.commands import AnyCommand, decode_command
from engine.events import Recorded, decode
from engine.session.database import connect_reader
from engine.session.errors import UNDECODABLE, SessionDamaged, SessionError, of_sqlite
from engine.session.paths import SessionPaths
from engine.session.samples import Sample

_CHUNK = 256
"""Rows read at once: few, so that what is made of them is still in the processor's cache when it is folded."""
_LATEST = 253_402_300_800.0
"""The year 10000 in Unix seconds, beyond which no calendar of ours goes."""


class Heartbeat(Struct, frozen=True):
    """The engine's last sign of life; ``time`` in Unix seconds."""

    time: float
    pid: int
    note: str


class SentCommand(Struct, frozen=True):
    """A command as it stands in the session file.

    ``command`` is None where this program cannot read it (a newer monitor sent it); ``error`` then says why.
    """

    id: int
    time: float
    author: str
    command: AnyCommand | None
    error: str = ""


class SessionReader:
    """Reads a session that may be written meanwhile, finished, dead, or on read-only media.

    It never writes and never checkpoints, and holds no transaction between calls, so it cannot hold the engine up.
    For one thread at a time. Raises SessionError from every method.
    """

    def __init__(self, paths: SessionPaths) -> None:
        self.paths = paths
        self._connection, self._copy = connect_reader(paths)
        self._seen: int | None = None

    def __enter__(self) -> SessionReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()
        if self._copy is not None:
            self._copy.cleanup()

    def read(self, after_seq: int = 0, *, without: Collection[str] = ()) -> Iterator[Recorded]:
        """Events after ``after_seq`` in order, up to the end of the file. ``without``: kinds to leave out."""
        skip = ",".join("?" * len(without))
        query = f"SELECT seq, time, json FROM event WHERE seq > ? AND kind NOT IN ({skip}) ORDER BY seq LIMIT {_CHUNK}"
        seq = after_seq
        while rows := self._rows(query, (seq, *without)):
            yield from self._recorded(rows)
            if len(rows) < _CHUNK:
                return
            seq = rows[-1][0]

    def last_seq(self) -> int:
        """Number of the newest event, 0 if there is none."""
        return int(self._rows("SELECT coalesce(max(seq), 0) FROM event")[0][0])

    def changed(self) -> bool:
        """Whether anyone has committed anything since the last call (True on the first). Costs microseconds."""
        version = int(self._rows("PRAGMA data_version")[0][0])
        before, self._seen = self._seen, version
        return version != before

    def blob(self, digest: str) -> bytes:
        """The content behind a digest."""
        rows = self._rows("SELECT compressed FROM blob WHERE digest = ?", (digest,))
        try:
            if rows:
                return zlib.decompress(rows[0][0])
        except zlib.error as error:
            raise SessionDamaged(
                f"{self.paths.database}: blob {digest} is damaged ({error}).", self.paths.database
            ) from error
        raise SessionError(f"{self.paths.database}: there is no blob {digest}.", self.paths.database)

    def text(self, digest: str) -> str:
        """The text behind a digest (a source, a prompt, a log)."""
        return self.blob(digest).decode(errors="replace")

    def samples(self, since: float = 0.0) -> list[Sample]:
        """Device readings after ``since`` (Unix seconds), oldest first."""
        return [
            Sample(*row) for row in self._rows("SELECT time, json FROM sample WHERE time > ? ORDER BY id", (since,))
        ]

    def commands(self, after_id: int = 0) -> list[SentCommand]:
        """Commands after ``after_id``, in the order in which they were sent."""
        rows = self._rows("SELECT id, time, author, json FROM command WHERE id > ? ORDER BY id", (after_id,))
        return [_sent(*row) for row in rows]

    def handled(self, command: int) -> Recorded | None:
        """The ``command_handled`` event of a command, or None while the engine has not answered."""
        rows = self._rows(
            "SELECT seq, time, json FROM event WHERE kind = 'command_handled' AND json_extract(json, '$.command') = ?",
            (command,),
        )
        return Recorded(rows[0][0], rows[0][1], decode(rows[0][2])) if rows else None

    def heartbeat(self) -> Heartbeat | None:
        """The engine's last sign of life, None before its first."""
        rows = self._rows("SELECT time, pid, note FROM heartbeat")
        return Heartbeat(*rows[0]) if rows else None

    def config_name(self) -> str:
        """The configuration's path as given when the session was created."""
        rows = self._rows("SELECT value FROM about WHERE key = 'config_name'")
        return str(rows[0][0]) if rows else ""

    def quick_check(self) -> str | None:
        """SQLite's own check of the file: None if it is sound, else what is wrong."""
        rows = self._rows("PRAGMA quick_check(10)")
        found = "; ".join(str(row[0]) for row in rows)
        return None if found == "ok" else found

    def _recorded(self, rows: list[tuple[Any, ...]]) -> list[Recorded]:
        """Decode a chunk. Nothing decoded is garbage yet, so looking for garbage meanwhile only costs time (half)."""
        events: list[Recorded] = []
        seq = 0
        collecting = gc.isenabled()
        gc.disable()
        try:
            for seq, time, json in rows:
                events.append(Recorded(seq, time, decode(json)))
        except UNDECODABLE as error:
            raise SessionDamaged(
                f"{self.paths.database}: event {seq} cannot be read ({error}). "
                "The session was altered, or written by another version.",
                self.paths.database,
            ) from error
        finally:
            if collecting:
                gc.enable()
        times = [row[1] for row in rows]
        if not -_LATEST < min(times) <= max(times) < _LATEST:
            one = next(one for one in events if not -_LATEST < one.time < _LATEST)
            raise SessionDamaged(
                f"{self.paths.database}: event {one.seq} has no possible time ({one.time:g}). The session was altered.",
                self.paths.database,
            )
        return events

    def _rows(self, query: str, arguments: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, arguments).fetchall()
        except sqlite3.Error as error:
            raise of_sqlite(error, self.paths.database) from error


def _sent(id: int, time: float, author: str, json: str) -> SentCommand:
    try:
        return SentCommand(id, time, author, decode_command(json))
    except UNDECODABLE as error:
        return SentCommand(id, time, author, None, f"this engine does not know such a command: {error}")
