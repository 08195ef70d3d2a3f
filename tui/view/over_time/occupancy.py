"""Device activity over time: timing, checking, waiting for builds, or idle."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from engine.session.records import events as ev
from engine.session.state.session_state import SessionState

BINS = 256
"""Maximum number of bins. When a search needs more bins, pairs of bins merge, so that memory stays constant."""
FIRST_BIN_S = 0.5
"""Initial length of a bin, in seconds of search time."""
MOST_WAITING = 1 << 17
"""Maximum length of ``_waiting``, which limits its memory to 10 MB. A session of 20,000 kernels has fewer steps."""
_WORKS = {"timing": 0, "checking": 1, "building": 2}
"""Stages that occupy a device, as indices of ``Shares``."""
CHANGES = (
    *(ev.EngineStarted, ev.EngineStopped, ev.SearchPaused, ev.SearchResumed),
    *(ev.DeviceJoined, ev.DeviceLeft, ev.DeviceAwaited, ev.DeviceFree),
)
"""Events that change the number of devices, or stop or restart the search clock."""


class Shares(NamedTuple):
    """Shares of a time span that a device spent timing, checking, or waiting for builds. The rest is idle time."""

    timing: float = 0.0
    checking: float = 0.0
    building: float = 0.0

    @property
    def idle(self) -> float:
        return max(0.0, 1.0 - self.timing - self.checking - self.building)


class _Step(Struct, frozen=True, gc=False):
    """A change in the work on a kernel at ``time`` (Unix seconds).

    ``before`` and ``after`` are indices of ``Shares``, or None if the kernel does not occupy a device.
    """

    time: float
    before: int | None
    after: int | None


class _Measured(Struct, frozen=True, gc=False):
    """A measurement on one device that took ``seconds`` and ended at ``time`` (Unix seconds)."""

    time: float
    seconds: float


class _Changed(Struct, frozen=True, gc=False):
    """The search at ``time`` (Unix seconds): its search time, whether its clock is running, and the number of devices.

    ``ends_work`` is true if the engine started or stopped, so that no kernel is in progress.
    """

    time: float = 0.0
    seconds: float = 0.0
    runs: bool = False
    devices: int = 1
    ends_work: bool = False


class Occupancy(Struct):
    """Device activity in bins of ``bin_s`` seconds of search time. A bin contains the seconds of each kind of work.

    A large session has 100,000 steps, and often no chart is on the screen. The steps therefore wait until a chart needs
    the bins.
    """

    bin_s: float = FIRST_BIN_S
    bins: list[list[float]] = field(default_factory=list)
    _at_work: dict[str, int] = field(default_factory=dict)
    """The work on each kernel that is being built, checked or timed."""
    _counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    """The number of kernels in each kind of work, at ``_since``."""
    _since: float = 0.0
    """Search time up to which ``bins`` are complete."""
    _last: _Changed = _Changed()
    _waiting: list[_Step | _Measured | _Changed] = field(default_factory=list)

    def note_stage(self, event: ev.VariantStage, time: float) -> None:
        """Record that a kernel entered a stage at ``time`` (Unix seconds). Most events are of this kind."""
        at_work, variant, after = self._at_work, event.variant, _WORKS.get(event.stage)
        if (before := at_work.get(variant)) != after:
            self._waiting.append(_Step(time, before, after))
            if after is not None:
                at_work[variant] = after
            else:
                del at_work[variant]

    def note_end(self, variant: str, time: float) -> None:
        """Record that a kernel's evaluation ended at ``time`` (Unix seconds)."""
        if (before := self._at_work.pop(variant, None)) is not None:
            self._waiting.append(_Step(time, before, None))
        if len(self._waiting) >= MOST_WAITING:
            self._catch_up()

    def note_measurement(self, seconds: float, time: float) -> None:
        """Record a measurement that took ``seconds`` and ended at ``time`` (Unix seconds)."""
        self._waiting.append(_Measured(time, seconds))

    def note_change(self, state: SessionState, event: ev.AnyEvent, time: float) -> None:
        """Record an event of ``CHANGES`` at ``time`` (Unix seconds) that ``state`` has applied."""
        seconds = state.elapsed_s(time)
        devices = max(1, sum(one not in state.gone for one in state.devices))
        if ends_work := isinstance(event, ev.EngineStarted | ev.EngineStopped):
            self._at_work.clear()
        self._waiting.append(_Changed(time, seconds, state.elapsed_s(time + 1.0) > seconds, devices, ends_work))

    def shares(self, seconds: float, columns: int) -> list[Shares]:
        """Return device activity in ``columns`` equal spans of the search, up to the search time ``seconds``."""
        self._catch_up()
        seconds = max(seconds, self._since, 1e-9)
        now = Occupancy(self.bin_s, [list(one) for one in self.bins])
        if seconds > self._since:
            now._add(self._since, seconds, self._work())
        bins, width = now.bins, now.bin_s
        span, found = seconds / columns, []
        for column in range(columns):
            start, end = column * span, (column + 1) * span
            sums = [0.0, 0.0, 0.0]
            for number in range(int(start / width), min(len(bins), int(end / width) + 1)):
                begun, length = number * width, min(width, seconds - number * width)
                covered = min(end, begun + length) - max(start, begun)
                for work in range(3):
                    sums[work] += bins[number][work] * max(0.0, covered) / max(length, 1e-9)
            found.append(Shares(*(min(1.0, one / span) for one in sums)))
        return found

    def _catch_up(self) -> None:
        """Add the waiting steps to the bins."""
        for one in self._waiting:
            if isinstance(one, _Changed):
                self._advance(one.seconds)
                if one.ends_work:
                    self._counts = [0, 0, 0]
                self._last = one
                continue
            last = self._last
            seconds = last.seconds + (one.time - last.time if last.runs else 0.0)
            if isinstance(one, _Measured) and not any(self._counts) and seconds > self._since:
                self._add(max(self._since, seconds - one.seconds), seconds, Shares(1.0 / last.devices))
            self._advance(seconds)
            if isinstance(one, _Step):
                if one.before is not None:
                    self._counts[one.before] -= 1
                if one.after is not None:
                    self._counts[one.after] += 1
        self._waiting.clear()

    def _advance(self, seconds: float) -> None:
        """Complete the bins up to a search time in seconds."""
        if seconds > self._since:
            if any(self._counts):
                self._add(self._since, seconds, self._work())
            self._since = seconds

    def _work(self) -> Shares:
        """Return how the devices divide their time at this moment."""
        devices, (timing, checking, building) = self._last.devices, self._counts
        timing = min(devices, timing)
        checking = min(devices - timing, checking)
        building = devices - timing - checking if building else 0
        return Shares(timing / devices, checking / devices, building / devices)

    def _add(self, start: float, end: float, work: Shares) -> None:
        while end > self.bin_s * BINS:
            bins = self.bins if len(self.bins) % 2 == 0 else [*self.bins, [0.0, 0.0, 0.0]]
            pairs = zip(bins[::2], bins[1::2], strict=True)
            self.bins = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
            self.bin_s *= 2
        first, last = int(start / self.bin_s), int(end / self.bin_s)
        while len(self.bins) <= last:
            self.bins.append([0.0, 0.0, 0.0])
        for number in range(first, last + 1):
            covered = min(end, (number + 1) * self.bin_s) - max(start, number * self.bin_s)
            for place, share in enumerate(work):
                self.bins[number][place] += share * covered
