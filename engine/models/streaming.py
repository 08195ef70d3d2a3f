"""What both clients need of a stream: the text as it grows, a watch on silence, and what a server asks for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from email.utils import parsedate_to_datetime

from engine.models.protocol import CallFailed

SHOW_EVERY_S = 0.25
"""How often whoever watches is given the text so far."""
TEXT_LIMIT = 1 << 20
"""Characters of a reply that are kept; no kernel is longer."""
_STREAM_LIMIT = 64 << 20
_MESSAGE = 300


class Growing:
    """The text of a reply while it streams."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._parts: list[str] = []
        self._length = 0
        self._shown_at = 0.0

    def add(self, part: str | None) -> None:
        """Raises :class:`CallFailed` for a stream that has no end."""
        if not part:
            return
        if self._length < TEXT_LIMIT:
            self._parts.append(part[: TEXT_LIMIT - self._length])
        self._length += len(part)
        if self._length > _STREAM_LIMIT:
            raise CallFailed("broken_reply", f"the reply had more than {_STREAM_LIMIT >> 20} MiB and no end")
        if (now := time.monotonic()) - self._shown_at >= SHOW_EVERY_S:
            self._shown_at = now
            self._on_text(self.text)

    @property
    def text(self) -> str:
        # A server may cut between the two halves of a character, and send one alone, which no file can hold.
        return "".join(self._parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    @property
    def too_long(self) -> bool:
        """Whether the end of the text was thrown away."""
        return self._length > TEXT_LIMIT


class Watch:
    """Ends an attempt in which the server says nothing for ``silence_s``, and up to a twentieth longer; comments to
    keep a line open do not count."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._slack_s = silence_s / 20
        self._timeout: asyncio.Timeout | None = None
        self._set_at = 0.0
        self.has_heard = False

    @contextlib.asynccontextmanager
    async def over(self) -> AsyncIterator[None]:
        """Raises :class:`CallFailed` ("timeout")."""
        try:
            self._set_at = asyncio.get_running_loop().time()
            async with asyncio.timeout(self._silence_s + self._slack_s) as self._timeout:
                yield
        except TimeoutError:
            raise CallFailed("timeout", f"the server said nothing for {self._silence_s:g} s") from None

    def heard(self) -> None:
        """Something came."""
        self.has_heard = True
        now = asyncio.get_running_loop().time()
        # A timer set anew for each of thousands of events costs more than reading them.
        if self._timeout is not None and now - self._set_at >= self._slack_s:
            self._set_at = now
            self._timeout.reschedule(now + self._silence_s + self._slack_s)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait: ``Retry-After`` as seconds or as a date (RFC 9110, 10.2.3)."""
    if (wish := headers.get("retry-after")) is None:
        return None
    try:
        return max(0.0, float(wish))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(wish).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def must_be_events(headers: Mapping[str, str]) -> None:
    """Raises :class:`CallFailed` for an answer of 200 that is no event stream: a proxy's page, a login form."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "text/event-stream":
        raise CallFailed("broken_reply", f"status 200 with {kind or 'no content type'} in place of an event stream")


def short(message: object) -> str:
    """One line of a server's words, which may be no text at all."""
    text = " ".join(str(message).encode(errors="replace").decode().split())
    return text if len(text) <= _MESSAGE else text[: _MESSAGE - 3] + "..."
