"""Feed a monitor with the events of a session file that an engine may be writing."""

from __future__ import annotations

import gc
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from engine.config.tolerance import DEFAULT, SessionTolerance, canonical
from engine.config.toml_table import toml_table
from engine.devices.sample import DeviceSample, decode_samples
from engine.session.records.events import Recorded
from engine.session.records.requests import Command
from engine.session.state.session_state import SessionState
from engine.session.store import (
    Liveness,
    SessionError,
    SessionPaths,
    SessionReader,
    engine_liveness,
    is_bundled,
    must_not_be_bundled,
    send_request,
)
from tui.text.story import Story
from tui.view.over_time.history import History, fold_all

HISTORY_S = 900.0
"""Time span of the device readings on the screen, in seconds."""
LINK_EVERY_S = 0.5

LinkKind = Literal["connecting", "starting", "live", "stalled", "ended", "replay"]
ALIVE: tuple[LinkKind, ...] = ("starting", "live", "stalled")
"""The kinds of link for which an engine process exists."""


class Link(Struct, frozen=True):
    """The engine's state, from its lock and heartbeat.

    ``starting``: this process started the engine, which has no lock yet. ``stalled``: ``message`` says why, since
    when, and what to do. ``ended``: no engine is running, and the events say how the last engine ended. ``gone``: the
    session was moved or deleted, and ``pid`` is the engine that was running, if any. ``heard_at``: the time of the last
    heartbeat of an engine that ended, by the engine's clock. ``is_new``: whether the engine may not have recorded its
    start yet; ``heard_at`` is then the time of the earlier engine's last event or heartbeat. ``started``: the time at
    which the running engine took the lock, by the engine's clock, or 0 if unknown.
    """

    kind: LinkKind
    pid: int | None = None
    heartbeat_age_s: float | None = None
    message: str = ""
    gone: bool = False
    heard_at: float = 0.0
    is_new: bool = False
    started: float = 0.0


class Reading(Struct, frozen=True):
    """Samples of all devices, taken at the same time (Unix seconds)."""

    time: float
    samples: tuple[DeviceSample, ...]


class Update(Struct):
    """Changes since the last poll. ``state``, ``story`` and ``history``, if given, replace all earlier data."""

    events: list[Recorded] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    link: Link | None = None
    state: SessionState | None = None
    story: Story | None = None
    history: History | None = None

    def __bool__(self) -> bool:
        return bool(self.events or self.readings or self.link is not None or self.state is not None)


class Limits(Struct, frozen=True):
    """Settings from the session's config: budget (None for no limit), final measurements and tolerance."""

    minutes: float | None = None
    rounds: int | None = None
    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None
    torch_compile: bool = True
    other_sizes: bool = False
    tolerance: SessionTolerance = None


class Source(Protocol):
    """A monitor's data source. The feed's thread calls ``open``, ``poll`` and ``close``. The app's thread calls all
    other methods.
    """

    paths: SessionPaths
    name: str
    argument: str
    """The session's name or path, as a shell argument in the current directory."""
    read_only: bool
    limits: Limits

    def open(self) -> Update:
        """Return the current state and log. Raises SessionError."""
        ...

    def poll(self) -> Update:
        """Return the changes since the last poll. Raises SessionError."""
        ...

    def close(self) -> None: ...

    def now(self) -> float:
        """Return the current time by the engine's clock, which also sets the times of events, in Unix seconds."""
        ...

    def system_now(self) -> float:
        """Return the current time by the system clock, in Unix seconds."""
        ...

    def text(self, digest: str) -> str:
        """Return a blob as text. Raises SessionError."""
        ...

    def send(self, command: Command) -> int:
        """Send a request and return its number. Raises SessionError."""
        ...


class SessionSource:
    """A session on this machine.

    ``clock`` returns Unix seconds, and tests freeze it. ``starting`` returns whether a new engine has not yet taken
    the session's lock.
    """

    def __init__(
        self,
        paths: SessionPaths,
        *,
        read_only: bool = False,
        author: str = "monitor",
        clock: Callable[[], float] = time.time,
        starting: Callable[[], bool] = lambda: False,
    ) -> None:
        self.paths = paths
        self.name = paths.name
        self.argument = argument_of(paths)
        self.read_only = read_only or is_bundled(paths)
        self.limits = limits_of(paths)
        self._author = author
        self._clock = clock
        self._offset_s = 0.0
        self._starting = starting
        self._feed: SessionReader | None = None
        self._blobs: SessionReader | None = None
        self._seq = 0
        self._read_at = 0.0
        self._link_at = 0.0
        self._link: Link | None = None
        self._file: tuple[int, int] | None = None

    def open(self) -> Update:
        self._feed = SessionReader(self.paths)
        self._file = _file_at(self.paths.database)
        with _collector_paused():
            state, story, history = fold_all(self._feed.read())
        self._seq = state.seq
        self._read_at = self._clock() - HISTORY_S
        if state.time and state.time < self._read_at:
            self._read_at = state.time - HISTORY_S
        return Update(state=state, story=story, history=history)

    def poll(self) -> Update:
        assert self._feed is not None
        update = Update()
        try:
            if time.monotonic() - self._link_at > LINK_EVERY_S:
                # Check the lock before reading events: an engine records how it ended before it releases the lock.
                self._link_at = time.monotonic()
                self._relink(update, self._look(self._feed))
            if self._feed.changed():
                update.events = list(self._feed.read(self._seq))
                if update.events:
                    self._seq = update.events[-1].seq
                update.readings = list(self._readings(self._feed))
        except SessionError:
            if self._in_place():
                raise
            self._relink(update, self._gone())
        return update

    def _look(self, feed: SessionReader) -> Link:
        if not self._in_place():
            return self._gone()
        starting = self._starting()
        link, beat = link_of(engine_liveness(self.paths, feed)), feed.heartbeat()
        self._offset_s = beat.clock_offset_s if beat is not None else 0.0
        heard_at = beat.engine_time if beat is not None else 0.0
        if link.kind != "ended":
            return msgspec.structs.replace(link, heard_at=heard_at) if link.is_new else link
        return msgspec.structs.replace(Link("starting") if starting else link, heard_at=heard_at)

    def _relink(self, update: Update, link: Link) -> None:
        if link != self._link:
            self._link = update.link = link

    def _in_place(self) -> bool:
        """Return whether the session is still at its path. After a move, the open session file stays readable."""
        found = _file_at(self.paths.database)
        if self._file is None:  # The session was packed. An engine replaces the packed file with the database.
            self._file = found
            return found is not None or self.paths.packed.exists()
        return found == self._file

    def _gone(self) -> Link:
        before = self._link
        return Link(
            "ended", before.pid if before is not None and (before.gone or before.kind in ALIVE) else None, gone=True
        )

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()

    def now(self) -> float:
        return self._clock() - self._offset_s

    def system_now(self) -> float:
        return self._clock()

    def text(self, digest: str) -> str:
        if self._blobs is None:
            self._blobs = SessionReader(self.paths)
        return self._blobs.text(digest)

    def send(self, command: Command) -> int:
        must_not_be_bundled(self.paths)
        if self.read_only:
            raise SessionError(
                f"{self.paths.directory}: attached read-only. To steer, attach without --read-only.",
                self.paths.directory,
            )
        return send_request(self.paths, command, self._author)

    def _readings(self, reader: SessionReader) -> Iterator[Reading]:
        for sample in reader.samples(self._read_at):
            self._read_at = sample.time
            try:
                yield Reading(sample.time, tuple(decode_samples(sample.json)))
            except msgspec.MsgspecError:
                continue  # Another version wrote this sample, so leave a gap.


def _file_at(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, or None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def argument_of(paths: SessionPaths) -> str:
    """Return the session's name if ``kernel-tui attach NAME`` works in this directory, or the session's path.

    The result is quoted for a shell command.
    """
    is_here = paths.directory == Path("sessions").absolute() / paths.name
    return shlex.quote(paths.name) if is_here or is_bundled(paths) else paths.quoted


def limits_of(paths: SessionPaths) -> Limits:
    """Return the limits in the session's configuration, or no limits if the file is unreadable."""
    try:
        config = toml_table(paths.config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Limits()
    budget, rounds = config.get("budget", {}), config.get("search", {}).get("rounds")
    minutes, dollars = (budget.get(name) for name in ("minutes", "dollars"))
    tokens, calls = (budget.get(name) for name in ("tokens", "calls"))
    evaluation = config.get("evaluation", {})
    return Limits(
        minutes=float(minutes) if isinstance(minutes, int | float) else None,
        rounds=rounds if isinstance(rounds, int) else None,
        dollars=float(dollars) if isinstance(dollars, int | float) else None,
        tokens=tokens if isinstance(tokens, int) else None,
        calls=calls if isinstance(calls, int) else None,
        torch_compile=evaluation.get("torch_compile", True) is True,
        other_sizes=evaluation.get("other_sizes", False) is True,
        tolerance=canonical(evaluation.get("tolerance", DEFAULT)),
    )


def limits_now(state: SessionState, created: Limits) -> Limits:
    """Return the config's limits, overridden by requests in this session."""
    asked = {name: getattr(state, name) for name in ("minutes", "rounds", "dollars", "tokens", "calls")}
    return replace(created, **{name: value for name, value in asked.items() if value is not None})


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which would repeatedly scan many new, long-lived objects.

    Afterwards, freeze these objects, so that later collections do not stall the screen.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def link_of(liveness: Liveness) -> Link:
    """Convert the lock and heartbeat to a link. Times are in whole seconds, so that equal states compare equal."""
    age = liveness.heartbeat_age_s
    if liveness.running:
        if liveness.stall is not None:
            age_s = float(int(min(age or 0.0, 1e9)))
            link = Link("stalled", liveness.pid, age_s, liveness.stall)
        else:
            link = Link("live", liveness.pid)
        return msgspec.structs.replace(link, is_new=liveness.starting, started=liveness.started)
    return Link("ended", liveness.pid, None, liveness.message)
