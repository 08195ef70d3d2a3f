"""Replay a recorded session at any speed, with pause and seek."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar

import msgspec
from textual.binding import Binding
from textual.widgets import Input

from engine.devices.sample import decode_samples
from engine.session.records.events import EngineStarted, Recorded
from engine.session.records.requests import Command
from engine.session.state.session_state import SessionState
from engine.session.store import SessionError, SessionPaths, SessionReader
from tui.monitor.app import MonitorApp
from tui.monitor.key_bindings import REPLAY_ACTIONS
from tui.monitor.settings import Settings
from tui.monitor.terminal.terminal import exit_code_of
from tui.text import format as fmt
from tui.text.story import Story
from tui.view.over_time.history import History, fold_all
from tui.view.source import Link, Reading, Update, argument_of, limits_of

MAX_GAP_S = 5.0
"""Maximum gap between events, in seconds. The replay shortens longer gaps, such as a night between two engine runs."""
SAID_GAP_S = 60.0
"""Minimum skipped time that a notice mentions, in seconds."""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 2000.0)


class Clock:
    """A recording's clock, which runs ``speed`` times as fast as real time. Thread-safe.

    ``pause`` stops or restarts the clock, and ``seek`` sets it.
    """

    def __init__(self, start: float, end: float, speed: float) -> None:
        self._lock = threading.Lock()
        self.sought = 0
        """Number of calls to ``seek``."""
        self._start, self._end = start, end
        self._at, self._since, self._speed, self._paused = start, time.monotonic(), speed, False

    @property
    def speed(self) -> float:
        return self._speed

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def span_s(self) -> float:
        return self._end - self._start

    @property
    def ended(self) -> bool:
        """Whether the replay has reached the end of the recording."""
        return self.now() >= self._end

    def now(self) -> float:
        with self._lock:
            return self._now()

    def set_speed(self, speed: float) -> None:
        with self._lock:
            self._at, self._since, self._speed = self._now(), time.monotonic(), speed

    def pause(self, paused: bool) -> None:
        with self._lock:
            self._at, self._since, self._paused = self._now(), time.monotonic(), paused

    def seek(self, to: float) -> None:
        with self._lock:
            self._at, self._since = min(max(self._start, to), self._end), time.monotonic()
            self.sought += 1

    def _now(self) -> float:
        if self._paused:
            return self._at
        return min(self._end, self._at + (time.monotonic() - self._since) * self._speed)


class ReplaySource:
    """Supply a recorded session's events at their times, but shorten long gaps."""

    read_only = True

    def __init__(self, paths: SessionPaths, speed: float) -> None:
        self.name = paths.name
        self.argument = argument_of(paths)
        self.limits = limits_of(paths)
        self._reader = SessionReader(paths)
        self._recorded = list(self._reader.read())
        samples = [(sample.time, sample.json) for sample in self._reader.samples()]
        self._reader.close()
        self._blobs: SessionReader | None = None
        self.paths = paths
        self.starts = sum(isinstance(one.event, EngineStarted) for one in self._recorded)
        """Number of engine starts."""
        shifts = shorten_gaps([one.time for one in self._recorded])
        self._shifts = shifts
        self._times = [one.time - shift for one, shift in zip(self._recorded, shifts, strict=True)]
        self._readings = _readings(samples, [one.time for one in self._recorded], shifts)
        start = self._times[0] if self._times else 0.0
        self.clock = Clock(start, self._times[-1] if self._times else start, speed)
        self._place = 0
        self._reading = 0
        self._told = False
        self._sought = 0
        self._skipped_s = 0.0

    def open(self) -> Update:
        return Update(state=SessionState(), story=Story(), history=History())

    def poll(self) -> Update:
        update = Update()
        if not self._told:
            update.link, self._told = Link("replay"), True
        now = self.clock.now()
        place = bisect_right(self._times, now)
        if place < self._place:  # After a jump back, apply all events again, since the state cannot go backward.
            update.state, update.story, update.history = fold_all(self._at(0, place))
            self._reading = 0
        elif place > self._place:
            update.events = self._at(self._place, place)
            if self._place and self._sought == self.clock.sought:
                self._skipped_s += self._shifts[place - 1] - self._shifts[self._place - 1]
        self._place, self._sought = place, self.clock.sought
        upto = bisect_right(self._readings, now, key=lambda reading: reading.time)
        update.readings, self._reading = self._readings[self._reading : upto], upto
        return update

    def close(self) -> None:
        return

    def now(self) -> float:
        return self.clock.now()

    def system_now(self) -> float:
        return self.now()

    def take_skipped_s(self) -> float:
        """Return how many seconds of gaps the replay has skipped since the last call, not counting the user's jumps."""
        skipped, self._skipped_s = self._skipped_s, 0.0
        return skipped

    def elapsed_s(self) -> float:
        """Return the position in the recording's own time."""
        if not self._times:
            return 0.0
        return self.recorded_at(self.clock.now()) - self._recorded[0].time

    def recorded_at(self, when: float) -> float:
        """Return the recording's own time at replay time ``when``. This time jumps at the end of a gap by the seconds
        that the replay cut from it.
        """
        return when + (self._shifts[max(0, bisect_right(self._times, when) - 1)] if self._shifts else 0.0)

    @property
    def span_s(self) -> float:
        """Length of the recording in seconds, including gaps."""
        return self._recorded[-1].time - self._recorded[0].time if self._recorded else 0.0

    def text(self, digest: str) -> str:
        if self._blobs is None:
            self._blobs = SessionReader(self.paths)
        return self._blobs.text(digest)

    def send(self, command: Command) -> int:
        raise SessionError("A replay is read-only.", self.paths.directory)

    def _at(self, start: int, end: int) -> list[Recorded]:
        return [
            Recorded(one.seq, when, one.event)
            for one, when in zip(self._recorded[start:end], self._times[start:end], strict=True)
        ]


class ReplayApp(MonitorApp):
    """The monitor for a recording.

    ``space`` pauses the replay, ``,`` and ``.`` jump, and ``<`` and ``>`` set the speed.
    """

    BINDINGS: ClassVar = [
        Binding(action.keys, action.command, action.label, show=False, priority=True) for action in REPLAY_ACTIONS
    ]
    """Bindings that take priority over the panes' keys, except while the user types a filter."""

    def __init__(
        self, source: ReplaySource, *, settings: Settings | None = None, ascii_only: bool | None = None
    ) -> None:
        super().__init__(source, settings=settings, ascii_only=ascii_only)
        self.clock = source.clock
        self._replayed = source
        self.model.playing = self._playing
        self.model.recorded_at = source.recorded_at
        self.model.recorded_starts = source.starts

    def flush(self) -> None:
        super().flush()
        if (skipped := self._replayed.take_skipped_s()) >= SAID_GAP_S:
            self.say(f"Skipped {fmt.duration(skipped)} without events.")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action.startswith("replay_") and isinstance(self.focused, Input):
            return False
        return super().check_action(action, parameters)

    def action_replay_pause(self) -> None:
        self.clock.pause(not self.clock.paused)
        self.say("Replay paused. Press space to play." if self.clock.paused else "Replay is playing.")

    def action_replay_seek(self, share: float) -> None:
        """Jump by a share of the whole recording."""
        step = share * self.clock.span_s
        self.clock.seek(self.clock.now() + (step if abs(step) > 1 or share <= -1 else (1 if step > 0 else -1)))
        self.say(f"At {self._place(' of ')}")

    def action_replay_speed(self, step: int) -> None:
        place = min(range(len(SPEEDS)), key=lambda at: abs(SPEEDS[at] - self.clock.speed))
        self.clock.set_speed(SPEEDS[min(max(0, place + step), len(SPEEDS) - 1)])
        self.say(f"Speed {self.clock.speed:g}x")

    def alert(self, text: str) -> None:
        """Do nothing, since a replay sends no alerts."""

    def _playing(self) -> str:
        at = self._place("/")
        if self.clock.ended:
            return f"{at} the end (0 restarts)"
        return f"{at} paused" if self.clock.paused else f"{at} at {self.clock.speed:g}x"

    def _place(self, of: str) -> str:
        return f"{fmt.clock(self._replayed.elapsed_s())}{of}{fmt.clock(self._replayed.span_s)}"


def shorten_gaps(times: Sequence[float]) -> list[float]:
    """Return how much earlier each time becomes when the replay shortens gaps to ``MAX_GAP_S``."""
    shift, shifts = 0.0, []
    for place, when in enumerate(times):
        if place:
            shift += max(0.0, when - times[place - 1] - MAX_GAP_S)
        shifts.append(shift)
    return shifts


def run_replay(paths: SessionPaths, *, speed: float = 20.0) -> int:
    """Replay a recorded session from its beginning. Raises SessionError if the session cannot be read."""
    app = ReplayApp(ReplaySource(paths, speed))
    app.run()
    return exit_code_of(app)


def _readings(samples: list[tuple[float, str]], times: list[float], shifts: list[float]) -> list[Reading]:
    found = []
    for when, json in samples:
        place = bisect_right(times, when) - 1
        if place < 0:
            continue
        try:
            found.append(Reading(when - shifts[place], tuple(decode_samples(json))))
        except msgspec.MsgspecError:
            continue
    return sorted(found, key=lambda reading: reading.time)
