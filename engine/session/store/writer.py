"""Write session files with one thread, one connection and group commits.

The writer never loses data silently. When a commit fails (disk full, I/O error), the writer reports the failure once,
keeps everything queued, and retries with growing delays for ``patience_s``. During this time, callers that await an
event keep waiting. If a retry succeeds, the writer writes everything in order. Otherwise the engine stops, and every
pending future and every later ``append`` fails with the error. Acknowledged events are on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from engine.session.records.events import AnyEvent, Recorded, encode, kind_of
from engine.session.store.database import connect_engine, write_lock
from engine.session.store.errors import SessionError, of_sqlite
from engine.session.store.filesystem import check_file_system
from engine.session.store.paths import SessionPaths
from engine.session.store.samples import THIN_EVERY_S, thin
from engine.system import clock

PATIENCE_S = 30.0
_BATCH = 4096
_TOGETHER = 128
"""Maximum number of rows per insert statement."""
_SAMPLES_KEPT = 600
_LOG_LIMIT_BYTES = 64 << 20
_T = TypeVar("_T")


def _batched(rows: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _descriptor_of(path: Path) -> int | None:
    """Return SQLite's own descriptor for ``path``. Opening and closing another descriptor would release
    SQLite's locks.
    """
    wanted = str(path.resolve())
    with contextlib.suppress(OSError):
        for one in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(one.readlink()) == wanted:
                    return int(one.name)
    return None


class _Row(Struct):
    """An event waiting to be committed. ``together``: whether the next row must be in the same commit."""

    time: float
    event: AnyEvent
    kind: str
    json: str
    future: Future[Recorded]
    together: bool = False


class _Blob(Struct):
    digest: str
    content: bytes
    time: float


class _Pending(Struct):
    """Data waiting to be committed. ``rows`` is ordered, and each blob precedes the events that refer to it."""

    rows: deque[_Row | _Blob] = field(default_factory=deque)
    samples: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_SAMPLES_KEPT))
    heartbeat: tuple[float, int, str, float] | None = None
    flushes: list[Future[None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rows or self.samples or self.heartbeat or self.flushes)


class EventWriter:
    """Append events, blobs, samples and the heartbeat. Only the process that holds the engine lock may create a
    writer.

    Events contain the engine's monotonic time; heartbeats also contain the system clock's time. All methods are
    thread-safe. The writer's thread calls ``on_trouble`` with a message once per outage, and ``on_relief`` when the
    outage is over.

    Raises:
        SessionError: The writer cannot open the session.
    """

    def __init__(
        self,
        paths: SessionPaths,
        *,
        patience_s: float = PATIENCE_S,
        on_trouble: Callable[[str], None] | None = None,
        on_relief: Callable[[], None] | None = None,
    ) -> None:
        check_file_system(paths.directory)
        self.paths = paths
        self._patience_s = patience_s
        self._on_trouble, self._on_relief = on_trouble, on_relief
        self._connection = connect_engine(paths)
        self._descriptor = _descriptor_of(paths.database)
        self._connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT_BYTES}")
        self._pending = _Pending()
        self._condition = threading.Condition()
        self._closing = False
        self._failure: SessionError | None = None
        self._stored: set[str] = {digest for (digest,) in self._connection.execute("SELECT digest FROM blob")}
        self._thinned_at = 0.0
        self._thread = threading.Thread(target=self._run, name="session-writer", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> SessionError | None:
        """The error that stopped the writer; None if the writer works."""
        return self._failure

    def append(self, event: AnyEvent) -> Future[Recorded]:
        """Queue an event. The future completes once the event is on disk, or fails with a SessionError.

        The writer commits events, and completes their futures, in the order of the calls.
        """
        return self.append_all((event,))[0]

    def append_all(self, events: Iterable[AnyEvent]) -> list[Future[Recorded]]:
        """Queue related events for a single commit, so that either all or none survive a crash."""
        rows = [_Row(clock.now(), event, kind_of(event), encode(event).decode(), Future(), True) for event in events]
        if not rows:
            return []
        rows[-1].together = False
        for row in rows:
            row.future.set_running_or_notify_cancel()  # The writer writes the event even if its caller is canceled.
        with self._condition:
            if (refusal := self._refusal()) is not None:
                for row in rows:
                    row.future.set_exception(refusal)
            else:
                self._pending.rows.extend(rows)
                self._condition.notify()
        return [row.future for row in rows]

    async def record(self, event: AnyEvent) -> Recorded:
        """Append an event and wait for its commit. Canceling the wait does not revoke the event. Raises
        SessionError."""
        return await asyncio.wrap_future(self.append(event))

    def put_blob(self, content: str | bytes) -> str:
        """Store text or bytes, and return the SHA-256 digest that events use to refer to it.

        The writer commits the blob no later than any event queued after it. Raises SessionError if the writer has
        failed.
        """
        raw = content.encode() if isinstance(content, str) else content
        digest = hashlib.sha256(raw).hexdigest()
        with self._condition:
            if (refusal := self._refusal()) is not None:
                raise refusal
            if digest not in self._stored:
                self._stored.add(digest)
                self._pending.rows.append(_Blob(digest, raw, time.time()))
                self._condition.notify()
        return digest

    def sample(self, readings: object) -> None:
        """Store current device readings: anything that ``msgspec`` encodes as JSON. The writer thins out old readings.
        During an outage, it keeps only the newest 600.
        """
        json = msgspec.json.encode(readings).decode()
        with self._condition:
            if self._refusal() is None:
                self._pending.samples.append((time.time(), json))
                self._condition.notify()

    def heartbeat(self, note: str = "", engine_time: float | None = None) -> None:
        """Record that the engine is alive, with its state in ``note``. The file keeps only the latest heartbeat.

        Until an engine has recorded its start, it passes the time of the earlier engine's last event or heartbeat as
        ``engine_time``.
        """
        moment = clock.now() if engine_time is None else engine_time
        with self._condition:
            if self._refusal() is None:
                self._pending.heartbeat = (time.time(), os.getpid(), note, moment)
                self._condition.notify()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all data that is queued now is on disk. Raises SessionError or TimeoutError."""
        future: Future[None] = Future()
        with self._condition:
            if (refusal := self._refusal()) is not None:
                raise refusal
            self._pending.flushes.append(future)
            self._condition.notify()
        future.result(timeout_s)

    def close(self) -> None:
        """Write the queue, then close the database. During an outage, wait at most ``patience_s``. Idempotent.

        Raises SessionError if the writer could not write everything; the futures fail with the same error.
        """
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _refusal(self) -> SessionError | None:
        if self._failure is not None:
            return self._failure
        if self._closing:
            return SessionError(f"{self.paths.database}: the session is closed.", self.paths.database)
        return None

    # The writer's thread

    def _run(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                self._store(batch)
        except BaseException as error:
            self._give_up(_Pending(), error)
            raise
        finally:
            self._close_connection()

    def _next_batch(self) -> _Pending | None:
        """Return the queued data, up to a limit. Return None when the writer closes."""
        with self._condition:
            while not self._pending and not self._closing:
                self._condition.wait()
            if not self._pending:
                return None
            batch, self._pending = self._pending, _Pending()
            if len(batch.rows) > _BATCH:
                rows, cut = list(batch.rows), _BATCH
                while cut < len(rows) and isinstance(last := rows[cut - 1], _Row) and last.together:
                    cut += 1
                batch.rows, self._pending.rows = deque(rows[:cut]), deque(rows[cut:])
                self._pending.flushes, batch.flushes = batch.flushes, []
            return batch

    def _store(self, batch: _Pending) -> None:
        """Commit ``batch``, retrying during an outage. Complete the batch's futures, or fail them with the error."""
        first_failed: float | None = None
        pause_s = 0.1
        while True:
            try:
                recorded = self._commit(batch)
                break
            except SessionError as error:
                now = time.monotonic()
                if first_failed is None:
                    first_failed = now
                    if self._on_trouble is not None:
                        self._on_trouble(str(error))
                if now - first_failed >= self._patience_s:
                    self._give_up(batch, error)
                    return
            time.sleep(pause_s)
            pause_s = min(2.0, pause_s * 2)
        if first_failed is not None and self._on_relief is not None:
            self._on_relief()
        for row, one in zip((r for r in batch.rows if isinstance(r, _Row)), recorded, strict=True):
            row.future.set_result(one)
        for flush in batch.flushes:
            flush.set_result(None)

    def _commit(self, batch: _Pending) -> list[Recorded]:
        recorded: list[Recorded] = []
        db = self._connection
        blobs = [row for row in batch.rows if isinstance(row, _Blob)]
        rows = [row for row in batch.rows if isinstance(row, _Row)]
        packed = [(blob.digest, zlib.compress(blob.content), blob.time) for blob in blobs]
        if batch.heartbeat is not None:
            self._check_that_it_is_there()
        with write_lock(self.paths):
            try:
                db.execute("BEGIN IMMEDIATE")
                for contents in _batched(packed, _TOGETHER):
                    self._insert("INSERT OR IGNORE INTO blob VALUES", contents)
                for some in _batched(rows, _TOGETHER):
                    last = self._insert(
                        "INSERT INTO event (time, kind, json) VALUES", [(row.time, row.kind, row.json) for row in some]
                    )
                    # Only this thread inserts rows, so one statement's rows have consecutive numbers.
                    first = last - len(some) + 1
                    recorded += [Recorded(first + place, row.time, row.event) for place, row in enumerate(some)]
                if batch.heartbeat is not None:
                    db.execute("INSERT OR REPLACE INTO heartbeat VALUES (1, ?, ?, ?, ?)", batch.heartbeat)
                if batch.samples:
                    db.executemany("INSERT INTO sample (time, json) VALUES (?, ?)", batch.samples)
                    self._thin()
                db.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise of_sqlite(error, self.paths.database) from error
        return recorded

    def _check_that_it_is_there(self) -> None:
        """Check that the database file still exists, because SQLite writes to a deleted file without an error."""
        if self._descriptor is not None and os.fstat(self._descriptor).st_nlink == 0:
            text = (
                f"{self.paths.database}: another process deleted this file, so the engine can't record anything more. "
                f"Start a new session."
            )
            raise SessionError(text, self.paths.database)

    def _insert(self, statement: str, rows: Sequence[tuple[object, object, object]]) -> int:
        """Insert rows of three columns, and return the last row's number.

        Each statement inserts many rows, because the thread must wait for the GIL after each statement while the event
        loop is busy.
        """
        values = ", ".join(["(?, ?, ?)"] * len(rows))
        return self._connection.execute(f"{statement} {values}", [*chain.from_iterable(rows)]).lastrowid or 0

    def _roll_back(self) -> None:
        """Roll back the transaction, unless SQLite already did so because of a full disk."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _thin(self) -> None:
        now = time.time()
        if now - self._thinned_at >= THIN_EVERY_S:
            thin(self._connection, now)
            self._thinned_at = now

    def _give_up(self, batch: _Pending, error: BaseException) -> None:
        """Fail all pending futures and reject later events."""
        if not isinstance(error, SessionError):
            error = SessionError(
                f"{self.paths.database}: the engine cannot write to the session: {error!r}. Resume the session.",
                self.paths.database,
            )
        with self._condition:
            self._failure = error
            rows = [*batch.rows, *self._pending.rows]
            flushes = [*batch.flushes, *self._pending.flushes]
            self._pending = _Pending()
        for row in rows:
            if isinstance(row, _Row):
                row.future.set_exception(error)
        for flush in flushes:
            flush.set_exception(error)

    def _close_connection(self) -> None:
        """Checkpoint the log into the database, even while monitors are reading. If the checkpoint fails, the log
        remains.
        """
        try:
            with write_lock(self.paths):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._connection.close()
        except (SessionError, sqlite3.Error):
            self._connection.close()
