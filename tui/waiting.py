"""Words about devices that other processes hold, and how often they are said."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.events import AnyEvent, DeviceAwaited, DeviceFree, Recorded
from tui.format import clock
from tui.sanitize import one_line

_COMMAND_CHARS = 100
_AGAIN_S = 60.0
"""Searches may take turns on a device for hours: each holder is named once in this time."""
_LONG_S = 10.0
"""The end of a shorter wait is not worth a line."""


def held_in_words(pid: int, command: str, held_since: float | None = None, now: float = 0.0) -> str:
    """``another process holds it, pid 4711 (kernel-tui eval a.cpp), for 0:12``."""
    named = f" ({one_line(command, _COMMAND_CHARS)})" if command else ""
    since = f", for {clock(now - held_since)}" if held_since is not None and now - held_since >= 1 else ""
    return f"another process holds it, pid {pid}{named}{since}"


@dataclass(slots=True)
class WaitLines:
    """A line for waits for devices that are worth one."""

    _said: dict[int, float] = field(default_factory=dict)

    def line_of(self, recorded: Recorded) -> str | None:
        event: AnyEvent = recorded.event
        if isinstance(event, DeviceAwaited) and recorded.time - self._said.get(event.pid, 0.0) >= _AGAIN_S:
            self._said[event.pid] = recorded.time
            return (
                f"waiting for the device: {held_in_words(event.pid, event.command, event.held_since, recorded.time)}; "
                "the budget's minutes stand still"
            )
        if isinstance(event, DeviceFree) and event.seconds >= _LONG_S:
            return f"the device is free again after {clock(event.seconds)}"
        return None
