"""Describe waits for a device that other processes are using."""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct, field

from engine.session.records.events import AnyEvent, DeviceAwaited, DeviceFree, EngineStarted, Recorded
from tui.text.format import clock
from tui.text.sanitize import one_line

_COMMAND_CHARS = 100
_AGAIN_S = 60.0
"""Minimum seconds between two lines about waits, since searches can share a device for hours."""
_LONG_S = 5.0
"""Minimum length of a wait that gets a line in the log, in seconds."""


class Awaited(Protocol):
    """A wait for a device, either live or recorded."""

    @property
    def pid(self) -> int: ...
    @property
    def command(self) -> str: ...
    @property
    def held_since(self) -> float | None: ...
    @property
    def needed_bytes(self) -> int: ...
    @property
    def free_bytes(self) -> int: ...


def held_in_words(wait: Awaited, now: float | None = None, *, tense: Literal["holds", "held"] = "holds") -> str:
    """Describe which process is using the device or its memory.

    Example: ``in use by pid 4711 (kernel-tui eval a.cpp), for 0:12``.
    """
    named = f"pid {wait.pid} ({one_line(wait.command, _COMMAND_CHARS)})" if wait.command else f"pid {wait.pid}"
    if wait.needed_bytes:
        from engine.system.memory import bytes_in_words

        one_is, many_are = ("is", "are") if tense == "holds" else ("was", "were")
        holder = (
            f"{named} {one_is} using most of the rest" if wait.pid else f"other processes {many_are} using the rest"
        )
        needed, free = bytes_in_words(wait.needed_bytes), bytes_in_words(wait.free_bytes)
        return f"{needed} of memory needed, {free} free; {holder}"
    lasts_s = now - wait.held_since if now is not None and wait.held_since is not None else 0.0
    return f"in use by {named}{f', for {clock(lasts_s)}' if lasts_s >= 1 else ''}"


class WaitLines(Struct):
    """Report long waits for a device. Consecutive waits share a line."""

    _holders: dict[str, tuple[DeviceAwaited, float]] = field(default_factory=dict)
    """For each device, the last process that used it and the time when the wait began."""
    _waiting: set[str] = field(default_factory=set)
    _untold_s: list[float] = field(default_factory=list)
    _said_at: float = 0.0

    def line_of(self, recorded: Recorded) -> str | None:
        """Return the line about waits that ended with ``recorded``, or None if no line is due."""
        event: AnyEvent = recorded.event
        if isinstance(event, EngineStarted):  # The previous engine may have died during a wait.
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
            f"waited {seconds} for the device" if times == 1 else f"waited {seconds} for the device, in {times} waits"
        )
        return f"{often}: {held_in_words(holder, tense='held')}"

    def lasting(self, now: float) -> str | None:
        """Return a line about a wait that is still in progress at ``now``. Each wait gets this line once."""
        for device in self._waiting:
            holder, since = self._holders[device]
            if now - since >= _LONG_S and now - self._said_at >= _AGAIN_S:
                self._said(now)
                self._waiting.discard(device)
                held = held_in_words(holder, now)
                return f"waiting for the device: {held}; the time budget is paused"
        return None

    def _said(self, now: float) -> None:
        self._said_at = now
        self._untold_s.clear()
