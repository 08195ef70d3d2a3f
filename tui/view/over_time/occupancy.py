"""What the devices did over time: timing, checking, building for them, or nothing."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from engine.session.records import events as ev
from engine.session.state.session_state import SessionState

BINS = 256
"""Maximum number of bins. When a search outgrows them, pairs of bins merge, so that memory stays constant."""
FIRST_BIN_S = 0.5
"""Length of a bin at first, in seconds of search time."""
OCCUPYING = frozenset({
    ev.VariantStage, ev.VerdictGiven, ev.EngineStarted, ev.EngineStopped, ev.DeviceJoined, ev.DeviceLeft,
    ev.BaselineMeasured, ev.RunoffFinished, ev.SizesChecked,
})  # fmt: skip
_WORKS = ("timing", "checking", "building")
_MEASURING = (ev.BaselineMeasured, ev.RunoffFinished, ev.SizesChecked)
"""Events at the end of a measurement on one device that no other event announces: references, runoffs, other sizes."""
_DEVICES = (ev.EngineStarted, ev.EngineStopped, ev.DeviceJoined, ev.DeviceLeft)
"""Events that change the number of devices."""


class Shares(NamedTuple):
    """Shares of a time span in which a device timed, checked, or waited for a build. The rest is idle."""

    timing: float = 0.0
    checking: float = 0.0
    building: float = 0.0

    @property
    def idle(self) -> float:
        return max(0.0, 1.0 - self.timing - self.checking - self.building)


class Occupancy(Struct):
    """The devices' work in bins of ``bin_s`` seconds of search time. Each bin has a device's seconds by work."""

    bin_s: float = FIRST_BIN_S
    bins: list[list[float]] = field(default_factory=list)
    _at_work: dict[str, str] = field(default_factory=dict)
    """The stage of each kernel that is being built, checked or timed."""
    _counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_WORKS, 0))
    """The number of those kernels by stage."""
    _devices: int = 1
    _since: float = 0.0
    """Search time up to which ``bins`` are complete."""

    def concerns(self, event: ev.VariantStage) -> bool:
        """Return whether the event changes what the devices do."""
        return event.stage in self._counts or event.variant in self._at_work

    def note(self, state: SessionState, event: ev.AnyEvent, seconds: float) -> None:
        """Add an event that ``state`` has applied, at a search time in seconds."""
        at_work = self._at_work
        if seconds > self._since:
            if at_work:
                self._add(self._since, seconds, self._work())
            elif isinstance(event, _MEASURING):
                self._add(max(self._since, seconds - event.seconds), seconds, Shares(1.0 / self._devices))
            self._since = seconds
        if isinstance(event, ev.VariantStage):
            if (before := at_work.pop(event.variant, None)) is not None:
                self._counts[before] -= 1
            if event.stage in self._counts:
                at_work[event.variant] = event.stage
                self._counts[event.stage] += 1
        elif isinstance(event, ev.VerdictGiven):
            if (before := at_work.pop(event.variant, None)) is not None:
                self._counts[before] -= 1
        elif isinstance(event, ev.EngineStarted | ev.EngineStopped):
            at_work.clear()
            self._counts = dict.fromkeys(_WORKS, 0)
        if isinstance(event, _DEVICES):
            self._devices = max(1, sum(one not in state.gone for one in state.devices))

    def shares(self, seconds: float, columns: int) -> list[Shares]:
        """Return the work of ``columns`` equal spans of the search up to now, at a search time in seconds."""
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

    def _work(self) -> Shares:
        """Return how the devices divide their time at this moment."""
        counts, devices = self._counts, self._devices
        timing = min(devices, counts["timing"])
        checking = min(devices - timing, counts["checking"])
        building = devices - timing - checking if counts["building"] else 0
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
