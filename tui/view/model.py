"""The monitor's model of a session: its state, device readings, link to the engine, and pending requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from engine.session.budget import elapsed_s
from engine.session.records.events import CommandHandled, DeviceAwaited
from engine.session.records.requests import Command
from engine.session.records.verdict import Verdict
from engine.session.state.session_state import ProblemState, SessionState, VariantState
from engine.session.store import Liveness
from tui.text.program import program
from tui.text.sanitize import one_line
from tui.text.story import Story
from tui.view.over_time.history import History
from tui.view.results import without_compile
from tui.view.source import HISTORY_S, Limits, Link, Reading, SessionSource, Source, Update, limits_now

READINGS = 900

EngineKind = Literal[
    "connecting",
    "starting",
    "live",
    "stalled",
    "replay",
    "died",
    "ended early",
    "stopped",
    "finished",
    "never ran",
    "gone",
]
"""``died``: the engine died without a last event. ``ended early``: only the lock file says why the engine ended, for
example because of a full disk. ``gone``: the session was moved or deleted."""


class Pending(Struct, frozen=True):
    """A request that the engine has not answered. The row of ``node`` shows ``text``."""

    number: int
    command: Command
    node: str | None
    text: str
    sent_at: float


class Model(Struct):
    """A session's data for the monitor. Only the app's thread changes this object."""

    source: Source
    state: SessionState = field(default_factory=SessionState)
    story: Story = field(default_factory=Story)
    history: History = field(default_factory=History)
    link: Link = field(default_factory=lambda: Link("connecting"))
    readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=READINGS))
    pending: dict[int, Pending] = field(default_factory=dict)
    trouble: str | None = None
    opened: bool = False
    playing: Callable[[], str] | None = None
    """Function that returns a replay's position and speed as text."""
    recorded_starts: int = 0
    """Number of engine starts in a replayed recording."""
    recorded_at: Callable[[float], float] | None = None
    """Function that maps a replay time to a recording time."""
    _ended_starts: int | None = None
    _ended_heard_at: float = 0.0
    """Number of engine starts and time of the last heartbeat, both when this monitor last saw no running engine."""

    def now(self) -> float:
        return self.source.now()

    def clock(self) -> float:
        """Return the time for running clocks: now, or the time of an ended engine's last heartbeat or event."""
        return self.now() if self.link.kind != "ended" else self.state.last_moment(self.link.heard_at)

    @property
    def is_opening(self) -> bool:
        """Whether the session's events are still loading, or nothing is known about its engine yet."""
        return not self.opened or self.link.kind == "connecting"

    @property
    def directory(self) -> Path | None:
        """The session's directory, or None for a replay."""
        return self.source.paths.directory if isinstance(self.source, SessionSource) else None

    def take(self, update: Update) -> None:
        """Apply an update, except its events, which the app applies one by one."""
        if update.state is not None:
            self.state, self.story, self.opened = update.state, update.story or Story(), True
            self.history = update.history or History()
            self.readings.clear()
        self.readings.extend(update.readings)
        if update.link is not None:
            self.link = update.link
            if update.link.kind in ("ended", "starting") and not update.link.gone:
                self._ended_starts, self._ended_heard_at = self.state.starts, update.link.heard_at
            elif update.link.is_new:
                self._ended_heard_at = update.link.heard_at
        # Until a new engine records its start, the events still describe the engine that died.
        starting = self.link.kind == "starting" or self.has_unrecorded_start
        died = starting and self.state.engine is not None and self.state.engine.stopped is None
        self.state.died = died or self.engine in ("died", "ended early")

    @property
    def engine(self) -> EngineKind:
        """The engine's state, from its lock and its events."""
        if self.link.kind != "ended":
            return self.link.kind
        if self.link.gone:
            return "gone"
        engine = self.state.engine
        if engine is None:
            return "never ran"
        if engine.stopped is None:
            return "ended early" if self.link.message else "died"
        return "finished" if engine.stopped == "finished" else "stopped"

    def answered(self, handled: CommandHandled) -> Pending | None:
        return self.pending.pop(handled.command, None)

    def give_up_pending(self) -> list[Pending]:
        """Drop and return all pending requests, after the engine has ended."""
        left = list(self.pending.values())
        self.pending.clear()
        return left

    def pending_at(self, node: str) -> str | None:
        """Return the text of a pending request for ``node``, if any."""
        return next((one.text for one in self.pending.values() if one.node == node), None)

    def latest(self) -> Reading | None:
        return self.readings[-1] if self.readings else None

    def recent(self) -> list[Reading]:
        since = (self.readings[-1].time if self.readings else 0.0) - HISTORY_S
        return [reading for reading in self.readings if reading.time >= since]

    def best(self, problem: ProblemState) -> VariantState | None:
        return self.state.variants.get(problem.best) if problem.best is not None else None

    def verdict_of_best(self, problem: ProblemState) -> Verdict | None:
        best = self.best(problem)
        return best.verdict if best is not None else None

    @property
    def limits(self) -> Limits:
        """The current limits, including changes by the user."""
        return limits_now(self.state, self.source.limits)

    def shown_whole_by(self, node: str) -> str:
        """Return the command that prints a text of ``node`` in full."""
        return f"full text: {program()} show {one_line(self.source.argument, 200)} {node} --json"

    def without_compile(self, problem: ProblemState) -> str:
        """Say why ``problem`` has no torch.compile time."""
        ended = self.state.engine is not None and self.state.engine.stopped is not None
        alive = self.link.kind in ("starting", "live", "stalled") or (self.link.kind == "replay" and not ended)
        return without_compile(problem, measured=self.source.limits.torch_compile, pending=alive)

    @property
    def wait(self) -> DeviceAwaited | None:
        """The first wait for a device that a process outside this search is using, if any."""
        if self.link.kind not in ("live", "stalled", "replay"):
            return None
        return next(iter(self.state.waits.values()), None)

    @property
    def minutes(self) -> float | None:
        """Time limit of the search in minutes, if any."""
        return self.limits.minutes

    @property
    def rounds(self) -> int | None:
        return self.limits.rounds

    def search_seconds(self) -> float:
        """Return the search time that counts against the budget, in seconds: all engine runs, without pauses."""
        return elapsed_s(self.state, self._search_clock())

    def turn_seconds(self) -> float:
        """Return the time that counts against the open turn's minutes, in seconds."""
        return self.state.turn_s(self._search_clock())

    def _search_clock(self) -> float:
        if self.has_unrecorded_start:
            return self.state.last_moment(self._ended_heard_at)
        alive = self.link.kind in ("live", "stalled", "replay")
        return self.now() if alive else self.state.last_moment(self.link.heard_at)

    @property
    def has_unrecorded_start(self) -> bool:
        """Whether a new engine is running that has not recorded its start yet. The events still describe the earlier
        engine.
        """
        if self.link.kind not in ("live", "stalled"):
            return False
        return self.state.starts == self._ended_starts or precedes_engine(
            self.state, self.link.pid, self.link.started, self.link.is_new
        )


def note_death(state: SessionState, live: Liveness) -> None:
    """Record in ``state`` whether the newest engine in the events died."""
    runs = live.running and not precedes_engine(state, live.pid, live.started, live.starting)
    state.died = not runs and state.engine is not None and state.engine.stopped is None


def precedes_engine(state: SessionState, pid: int | None, started: float, is_new: bool) -> bool:
    """Return whether the events still describe an engine before the running engine ``pid``.

    In a container, both engines may have the same pid, but only the earlier engine recorded a start before the running
    engine took the lock.

    ``started``: the time at which the running engine took the lock, by the engine's clock. ``is_new``: whether the
    running engine may not have recorded its start yet.
    """
    return is_new and state.engine is not None and (state.engine.pid != pid or state.engine.started_at < started)
