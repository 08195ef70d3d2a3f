"""Where the monitor's facts come from: a session file that an engine may be writing, behind one small protocol."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from msgspec import Struct, field

from engine.commands import Command
from engine.devices import DeviceSample, decode_samples
from engine.events import Recorded
from engine.session import Liveness, SessionError, SessionPaths, SessionReader, engine_liveness, send_command
from engine.state import SessionState
from engine.toml_text import toml_table
from tui.story import Story, fold_with_story

HISTORY_S = 900.0
"""How far back device readings are shown."""
LINK_EVERY_S = 0.5

LinkKind = Literal["connecting", "starting", "live", "stalled", "ended", "replay"]
ALIVE: tuple[LinkKind, ...] = ("starting", "live", "stalled")
"""An engine's process is there."""


class Link(Struct, frozen=True):
    """How the engine is by its lock and heartbeat. ``starting``: its process was started from here and has not taken
    the lock yet. ``stalled``: ``message`` says why or since when, and what to do. ``ended``: none runs; the events say
    whether it left a word. ``gone``: the session no longer lies where it was opened; ``pid`` is then the engine that
    ran until that was seen, if one did."""

    kind: LinkKind
    pid: int | None = None
    heartbeat_age_s: float | None = None
    message: str = ""
    gone: bool = False


class Reading(Struct, frozen=True):
    """All devices at one time (Unix seconds)."""

    time: float
    samples: tuple[DeviceSample, ...]


class Update(Struct):
    """What is new since the last poll. ``state`` and ``story``, if given, replace everything known before."""

    events: list[Recorded] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    link: Link | None = None
    state: SessionState | None = None
    story: Story | None = None

    def __bool__(self) -> bool:
        return bool(self.events or self.readings or self.link is not None or self.state is not None)


class Limits(Struct, frozen=True):
    """What the session was created with: its budget (None: no limit, or not known), and what is measured at its end."""

    minutes: float | None = None
    rounds: int | None = None
    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None
    torch_compile: bool = True
    other_sizes: bool = False


class Source(Protocol):
    """Feeds one monitor. The feed's thread calls ``open``, ``poll`` and ``close``, the app's thread the rest."""

    paths: SessionPaths
    name: str
    argument: str
    """What names the session on a command line typed here."""
    read_only: bool
    limits: Limits

    def open(self) -> Update:
        """Everything so far: its ``state`` and ``story``. Raises SessionError."""
        ...

    def poll(self) -> Update:
        """What is new. Raises SessionError."""
        ...

    def close(self) -> None: ...

    def now(self) -> float:
        """The time that ages are counted to, in Unix seconds."""
        ...

    def text(self, digest: str) -> str:
        """A blob as text. Raises SessionError."""
        ...

    def send(self, command: Command) -> int:
        """Write a command; its number. Raises SessionError."""
        ...


class SessionSource:
    """A session on this machine. ``clock`` gives Unix seconds; tests freeze it. ``starting``: whether an engine is on
    its way to the session's lock."""

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
        self.read_only = read_only
        self.limits = limits_of(paths)
        self._author = author
        self._clock = clock
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
            state, story = fold_with_story(self._feed.read())
        self._seq = state.seq
        self._read_at = self._clock() - HISTORY_S
        if state.time and state.time < self._read_at:
            self._read_at = state.time - HISTORY_S
        return Update(state=state, story=story)

    def poll(self) -> Update:
        assert self._feed is not None
        update = Update()
        try:
            if time.monotonic() - self._link_at > LINK_EVERY_S:
                # Before the events: an engine records how it ended before it gives its lock back.
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
        link = link_of(engine_liveness(self.paths, feed))
        return Link("starting") if link.kind == "ended" and starting else link

    def _relink(self, update: Update, link: Link) -> None:
        if link != self._link:
            self._link = update.link = link

    def _in_place(self) -> bool:
        """Whether the session still lies where it was opened. What is open stays readable, and says nothing of it."""
        return _file_at(self.paths.database) == self._file

    def _gone(self) -> Link:
        before = self._link
        return Link(
            "ended", before.pid if before is not None and (before.gone or before.kind in ALIVE) else None, gone=True
        )

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()

    def now(self) -> float:
        return self._clock()

    def text(self, digest: str) -> str:
        if self._blobs is None:
            self._blobs = SessionReader(self.paths)
        return self._blobs.text(digest)

    def send(self, command: Command) -> int:
        if self.read_only:
            raise SessionError(
                f"{self.paths.directory}: attached read-only; attach without --read-only to steer.",
                self.paths.directory,
            )
        return send_command(self.paths, command, self._author)

    def _readings(self, reader: SessionReader) -> Iterator[Reading]:
        for sample in reader.samples(self._read_at):
            self._read_at = sample.time
            try:
                yield Reading(sample.time, tuple(decode_samples(sample.json)))
            except msgspec.MsgspecError:
                continue  # readings of another version: a gap in the strip, nothing that matters


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file that is, None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def argument_of(paths: SessionPaths) -> str:
    """The session's name where ``kernel-tui attach NAME`` would find it from here, else its directory."""
    return paths.name if paths.directory == Path("sessions").absolute() / paths.name else str(paths.directory)


def limits_of(paths: SessionPaths) -> Limits:
    """The limits in the session's frozen configuration; none where that cannot be read."""
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
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Without the cyclic collector, which would walk a hundred thousand new and lasting objects again and again.

    They are set aside afterwards, so that later collections do not stall the screen either.
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
    """What the lock and the heartbeat say, in whole seconds, so that it changes only when there is news."""
    age = liveness.heartbeat_age_s
    if liveness.running:
        if liveness.stall is not None:
            return Link("stalled", liveness.pid, float(int(min(age or 0.0, 1e9))), liveness.stall)
        return Link("live", liveness.pid)
    return Link("ended", liveness.pid, None, liveness.message)
