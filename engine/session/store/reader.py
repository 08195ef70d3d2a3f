"""Read session files: a read-only connection that follows the engine's writes."""

from __future__ import annotations

import gc
import sqlite3
import time
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import Struct

from engine.session.records.events import Recorded, decode
from engine.session.records.requests import AnyRequest, decode_command
from engine.session.state.session_state import SessionState
from engine.session.store.database import connect_reader
from engine.session.store.errors import UNDECODABLE, SessionDamaged, SessionError, of_sqlite
from engine.session.store.paths import SessionPaths
from engine.session.store.samples import Sample

_CHUNK = 256
"""Number of rows per read: small, so that decoded events are still in the CPU's cache when they update the state."""
_LATEST = 253_402_300_800.0
"""The start of the year 10000 in Unix seconds; calendar functions reject this and later times."""


STARTING = "starting"
"""The note of a heartbeat from an engine that has not recorded its start."""


class Heartbeat(Struct, frozen=True):
    """The engine's last heartbeat. ``time`` is in Unix seconds. ``engine_time`` is the same moment by the engine's
    clock, which also sets the times of events; 0 in older files. While the note is ``STARTING``, ``engine_time`` is the
    time of the earlier engine's last event or heartbeat.
    """

    time: float
    pid: int
    note: str
    engine_time: float = 0.0

    @property
    def clock_offset_s(self) -> float:
        """Seconds that the system clock is ahead of the engine's clock, which stops while the machine sleeps; 0 if
        unknown. The value is rounded to whole seconds, so that it rarely changes between heartbeats.
        """
        is_known = self.engine_time > 0.0 and self.note != STARTING
        return float(round(self.time - self.engine_time)) if is_known else 0.0


class SentRequest(Struct, frozen=True):
    """A request as stored in the session file.

    ``command`` is None if this version cannot decode the request, for example because a newer monitor sent it.
    ``error`` then gives the reason.
    """

    id: int
    time: float
    author: str
    command: AnyRequest | None
    error: str = ""


class SessionReader:
    """Read a session whose engine is running, has ended or has died, even on read-only media.

    The reader never writes, never checkpoints, and holds no transaction between calls, so it never blocks the engine.
    Not thread-safe. Every method may raise SessionError.
    """

    def __init__(self, paths: SessionPaths) -> None:
        self.paths = paths
        self._was_packed = not paths.database.exists()
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
        """Yield events after ``after_seq`` in order, up to the end of the file. ``without`` lists kinds to skip."""
        skip = ",".join("?" * len(without))
        query = f"SELECT seq, time, json FROM event WHERE seq > ? AND kind NOT IN ({skip}) ORDER BY seq LIMIT {_CHUNK}"
        seq = after_seq
        while rows := self._rows(query, (seq, *without)):
            yield from self._recorded(rows)
            if len(rows) < _CHUNK:
                return
            seq = rows[-1][0]

    def last_seq(self) -> int:
        """Return the newest event's number, or 0 if there are no events."""
        return int(self._rows("SELECT coalesce(max(seq), 0) FROM event")[0][0])

    def changed(self) -> bool:
        """Return whether any process has committed since the last call. The first call returns True. Takes
        microseconds.
        """
        version = int(self._rows("PRAGMA data_version")[0][0])
        before, self._seen = self._seen, version
        return version != before

    def copy_to(self, target: Path) -> None:
        """Write a consistent copy of the database to ``target``, even while an engine is writing. ``target`` must not
        exist.
        """
        self._rows("VACUUM INTO ?", (str(target),))

    def blob(self, digest: str) -> bytes:
        """Return the content of a blob."""
        rows = self._rows("SELECT compressed FROM blob WHERE digest = ?", (digest,))
        try:
            if rows:
                return zlib.decompress(rows[0][0])
        except zlib.error as error:
            raise SessionDamaged(
                f"{self.paths.database}: blob {digest} is damaged ({error}). Restore a backup.", self.paths.database
            ) from error
        raise SessionError(f"{self.paths.database}: blob {digest} is missing. Restore a backup.", self.paths.database)

    def text(self, digest: str) -> str:
        """Return a blob as text (a source, a prompt, a log)."""
        return self.blob(digest).decode(errors="replace")

    def samples(self, since: float = 0.0) -> list[Sample]:
        """Return device readings after ``since`` (Unix seconds), oldest first."""
        return [
            Sample(*row) for row in self._rows("SELECT time, json FROM sample WHERE time > ? ORDER BY id", (since,))
        ]

    def commands(self, after_id: int = 0) -> list[SentRequest]:
        """Return requests after ``after_id``, in the order in which they were sent."""
        rows = self._rows("SELECT id, time, author, json FROM command WHERE id > ? ORDER BY id", (after_id,))
        return [_sent(*row) for row in rows]

    def handled(self, command: int) -> Recorded | None:
        """Return the ``command_handled`` event of a request, or None if the engine has not answered."""
        rows = self._rows(
            "SELECT seq, time, json FROM event WHERE kind = 'command_handled' AND json_extract(json, '$.command') = ?",
            (command,),
        )
        return Recorded(rows[0][0], rows[0][1], decode(rows[0][2])) if rows else None

    def heartbeat(self) -> Heartbeat | None:
        """Return the engine's last heartbeat, or None before the first."""
        rows = self._rows("SELECT * FROM heartbeat")  # Older files lack the last column.
        if not rows:
            return None
        _, time, pid, note, *engine_time = rows[0]
        return Heartbeat(time, pid, note, *(one or 0.0 for one in engine_time))

    def last_moment(self, state: SessionState) -> float:
        """Return the time of the newest engine's last event or heartbeat, by that engine's clock."""
        beat = self.heartbeat()
        if beat is None:
            return state.last_moment(0.0)
        engine = state.engine
        died = beat.note == STARTING and engine is not None and engine.stopped is None
        if died and engine is not None and beat.engine_time > engine.started_at:
            return beat.engine_time  # Later events are from an engine that has not recorded its start.
        return state.last_moment(beat.engine_time)

    def engine_now(self) -> float:
        """Return the current time by the clock of the running engine."""
        beat = self.heartbeat()
        return time.time() - (beat.clock_offset_s if beat is not None else 0.0)

    def config_name(self) -> str:
        """Return the path of the configuration file from which the session was created."""
        rows = self._rows("SELECT value FROM about WHERE key = 'config_name'")
        return str(rows[0][0]) if rows else ""

    def quick_check(self) -> str | None:
        """Run SQLite's integrity check on the file. Returns None if the file is sound, otherwise the errors."""
        rows = self._rows("PRAGMA quick_check(10)")
        found = "; ".join(str(row[0]) for row in rows)
        return None if found == "ok" else found

    def _follow_unpacked(self) -> None:
        """Switch from the private copy to the database that an engine unpacked from the packed session."""
        connection, copy = connect_reader(self.paths)
        self.close()
        self._connection, self._copy, self._seen, self._was_packed = connection, copy, None, False

    def _recorded(self, rows: list[tuple[Any, ...]]) -> list[Recorded]:
        """Decode a chunk of events. Turn garbage collection off during decoding, because it would free nothing and
        double the time.
        """
        seqs, times, texts = zip(*rows, strict=True)
        events: list[Recorded] = []
        collecting = gc.isenabled()
        gc.disable()
        try:
            events.extend(map(Recorded, seqs, times, map(decode, texts)))
        except UNDECODABLE as error:
            raise SessionDamaged(
                f"{self.paths.database}: cannot decode event {seqs[len(events)]} ({error}). Another "
                f"program altered the session, or another kernel-tui version wrote it. Restore a backup, or start a "
                f"new session.",
                self.paths.database,
            ) from error
        finally:
            if collecting:
                gc.enable()
        if not -_LATEST < min(times) <= max(times) < _LATEST:
            one = next(one for one in events if not -_LATEST < one.time < _LATEST)
            raise SessionDamaged(
                f"{self.paths.database}: event {one.seq} has an invalid time ({one.time:g}). Restore a backup.",
                self.paths.database,
            )
        return events

    def _rows(self, query: str, arguments: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        if self._was_packed and self.paths.database.exists():
            self._follow_unpacked()
        try:
            return self._connection.execute(query, arguments).fetchall()
        except sqlite3.Error as error:
            raise of_sqlite(error, self.paths.database) from error


def _sent(id: int, time: float, author: str, json: str) -> SentRequest:
    try:
        return SentRequest(id, time, author, decode_command(json))
    except UNDECODABLE as error:
        return SentRequest(
            id,
            time,
            author,
            None,
            f"this engine does not support the request ({error}); update kernel-tui and resume the search",
        )
