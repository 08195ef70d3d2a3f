"""What the devices did over time: timing, checking, building for them, or nothing."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.state.session_state import SessionState

BINS = 256
"""Maximum number of bins. When a search outgrows them, pairs of bins merge, so that memory stays constant."""
FIRST_BIN_S = 0.5
"""Length of a bin at first, in seconds of search time."""
MOST_WAITING = 1 << 17
"""Maximum number of events that wait, which bounds their memory (25 MB). A session of 20,000 kernels has fewer."""
_WORKS = {"timing": 0, "checking": 1, "building": 2}
"""The stages in which a kernel occupies a device, as indices of ``Shares``."""
_MEASURING = (ev.BaselineMeasured, ev.RunoffFinished, ev.SizesChecked)
"""Events at the end of a measurement on one device that no other event announces: references, runoffs, other sizes."""
_EVALUATING = (ev.VariantStage, ev.VerdictGiven)
WORK = (*_EVALUATING, *_MEASURING)
"""Events that change what the devices do."""
CHANGES = (
    *(ev.EngineStarted, ev.EngineStopped, ev.SearchPaused, ev.SearchResumed),
    *(ev.DeviceJoined, ev.DeviceLeft, ev.DeviceAwaited, ev.DeviceFree),
)
"""Events that change the number of devices, or stop and continue the search time."""


class Shares(NamedTuple):
    """Shares of a time span in which a device timed, checked, or waited for a build. The rest is idle."""

    timing: float = 0.0
    checking: float = 0.0
    building: float = 0.0

    @property
    def idle(self) -> float:
        return max(0.0, 1.0 - self.timing - self.checking - self.building)


class _Change(NamedTuple):
    """The search at ``time`` (Unix seconds): its search time, whether that runs on, and the number of devices.

    ``ends_work``: the engine started or stopped, so that no kernel is at work.
    """

    time: float = 0.0
    seconds: float = 0.0
    runs: bool = False
    devices: int = 1
    ends_work: bool = False


class Occupancy(Struct):
    """The devices' work in bins of ``bin_s`` seconds of search time. Each bin has a device's seconds by work.

    A large session has 100,000 events about stages, and often no chart is on the screen. Therefore these events wait
    in ``_waiting`` until the bins are needed.
    """

    bin_s: float = FIRST_BIN_S
    bins: list[list[float]] = field(default_factory=list)
    _at_work: dict[str, int] = field(default_factory=dict)
    """The work on each kernel that is being built, checked or timed, as an index of ``_WORKS``."""
    _counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    """The number of those kernels by work."""
    _since: float = 0.0
    """Search time up to which ``bins`` are complete."""
    _last: _Change = _Change()
    _waiting: list[Recorded | _Change] = field(default_factory=list)

    def note_work(self, recorded: Recorded) -> None:
        """Note an event of ``WORK``."""
        self._waiting.append(recorded)
        if len(self._waiting) >= MOST_WAITING:
            self._catch_up()

    def note_change(self, state: SessionState, recorded: Recorded) -> None:
        """Note an event of ``CHANGES`` that ``state`` has applied."""
        time = recorded.time
        seconds = state.elapsed_s(time)
        devices = max(1, sum(one not in state.gone for one in state.devices))
        ends_work = isinstance(recorded.event, ev.EngineStarted | ev.EngineStopped)
        self._waiting.append(_Change(time, seconds, state.elapsed_s(time + 1.0) > seconds, devices, ends_work))

    def shares(self, seconds: float, columns: int) -> list[Shares]:
        """Return the work of ``columns`` equal spans of the search up to now, at a search time in seconds."""
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
        """Add the waiting events to the bins."""
        for one in self._waiting:
            if isinstance(one, _Change):
                self._advance(one.seconds)
                if one.ends_work:
                    self._at_work.clear()
                    self._counts = [0, 0, 0]
                self._last = one
                continue
            event, last = one.event, self._last
            seconds = last.seconds + (one.time - last.time if last.runs else 0.0)
            if isinstance(event, _MEASURING):
                if not self._at_work and seconds > self._since:
                    self._add(max(self._since, seconds - event.seconds), seconds, Shares(1.0 / last.devices))
                self._advance(seconds)
            elif isinstance(event, _EVALUATING):
                work = _WORKS.get(event.stage) if isinstance(event, ev.VariantStage) else None
                self._enter(event.variant, work, seconds)
        self._waiting.clear()

    def _enter(self, variant: str, work: int | None, seconds: float) -> None:
        """Add that a kernel entered a stage, at a search time in seconds."""
        before = self._at_work.get(variant)
        if work == before:
            return
        self._advance(seconds)
        if before is not None:
            self._counts[before] -= 1
            del self._at_work[variant]
        if work is not None:
            self._counts[work] += 1
            self._at_work[variant] = work

    def _advance(self, seconds: float) -> None:
        """Complete the bins up to a search time in seconds."""
        if seconds > self._since:
            if self._at_work:
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
