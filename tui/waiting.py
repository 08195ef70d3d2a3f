"""Words about devices that other processes hold, and how often they are said."""

from __future__ import annotations

from msgspec import Struct, field

from engine.events import AnyEvent, DeviceAwaited, DeviceFree, EngineStarted, Recorded
from tui.format import clock
from tui.sanitize import one_line

_COMMAND_CHARS = 100
_AGAIN_S = 60.0
"""Searches may take turns on a device for hours: so often, at most, there is a line about it."""
_LONG_S = 5.0
"""Shorter waits are not worth a line."""


def held_in_words(
    pid: int, command: str, held_since: float | None = None, now: float = 0.0, *, tense: str = "holds"
) -> str:
    """``another process holds it, pid 4711 (kernel-tui eval a.cpp), for 0:12``."""
    named = f" ({one_line(command, _COMMAND_CHARS)})" if command else ""
    since = f", for {clock(now - held_since)}" if held_since is not None and now - held_since >= 1 else ""
    return f"another process {tense} it, pid {pid}{named}{since}"


class WaitLines(Struct):
    """A line for a wait for a device that is over, or for several that followed each other; none for short ones."""

    _holders: dict[str, tuple[DeviceAwaited, float]] = field(default_factory=dict)
    """By device: who holds it or did last, and since when it is waited for."""
    _waiting: set[str] = field(default_factory=set)
    _untold_s: list[float] = field(default_factory=list)
    _said_at: float = 0.0

    def line_of(self, recorded: Recorded) -> str | None:
        """What is to be said after ``recorded``: how long was waited and for whom."""
        event: AnyEvent = recorded.event
        if isinstance(event, EngineStarted):  # one before it may have died while it waited
            self._waiting.clear()
        if isinstance(event, DeviceAwaited):
            self._waiting.add(event.device)
            self._holders[event.device] = (event, recorded.time - event.seconds)
        if not isinstance(event, DeviceFree) or event.device not in self._holders:
            return None
        holder, _ = self._holders[event.device]
        if event.device in self._waiting:
            self._waiting.discard(event.device)
            self._untold_s.append(event.seconds)
        if sum(self._untold_s) < _LONG_S or recorded.time - self._said_at < _AGAIN_S:
            return None
        seconds, times = clock(sum(self._untold_s)), len(self._untold_s)
        self._said(recorded.time)
        often = (
            f"waited {seconds} for the device"
            if times == 1
            else f"waited {times} times for the device, {seconds} in all"
        )
        return f"{often}: {held_in_words(holder.pid, holder.command, tense='held')}"

    def lasting(self, now: float) -> str | None:
        """What is to be said at ``now`` of a wait that is not over, once of each: for a log that nobody looks past."""
        for device in self._waiting:
            holder, since = self._holders[device]
            if now - since >= _LONG_S and now - self._said_at >= _AGAIN_S:
                self._said(now)
                self._waiting.discard(device)
                held = held_in_words(holder.pid, holder.command, holder.held_since, now)
                return f"waiting for the device: {held}; the budget's minutes stand still"
        return None

    def _said(self, now: float) -> None:
        self._said_at = now
        self._untold_s.clear()
