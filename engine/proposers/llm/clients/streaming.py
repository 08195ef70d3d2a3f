"""Shared helpers for streams: buffer text, time out silent servers, check HTTP headers, and classify failures."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from email.utils import parsedate_to_datetime

from engine.proposers.llm.model_protocol import CallFailed
from engine.session.records.model_calls import Usage

SHOW_EVERY_S = 0.25
"""Minimum seconds between two updates of the displayed text."""
TEXT_LIMIT = 1 << 20
"""Maximum number of characters to keep from a reply. Kernels are shorter."""
_STREAM_LIMIT = 64 << 20
_MESSAGE = 300
_DRAIN_S = 1.0


class Growing:
    """A buffer for a streaming reply's text."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._parts: list[str] = []
        self._length = 0
        self._shown_at = 0.0

    def add(self, part: str | None) -> None:
        """Append the next part of the reply's text. Raises :class:`CallFailed` if the stream exceeds the size limit."""
        if not part:
            return
        if self._length < TEXT_LIMIT:
            self._parts.append(part[: TEXT_LIMIT - self._length])
        self._length += len(part)
        if self._length > _STREAM_LIMIT:
            raise CallFailed("broken_reply", f"the reply exceeds {_STREAM_LIMIT >> 20} MiB")
        if (now := time.monotonic()) - self._shown_at >= SHOW_EVERY_S:
            self._shown_at = now
            self._on_text(self.text)

    @property
    def text(self) -> str:
        # A server may split a surrogate pair between events, or send only half of a pair. No file can store half a
        # pair.
        return "".join(self._parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    @property
    def too_long(self) -> bool:
        """Whether the buffer discarded the end of a text that was too long."""
        return self._length > TEXT_LIMIT


class Watch:
    """End an attempt after ``silence_s`` seconds without data, or up to 5% later. Keep-alive comments do not count as
    data.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._slack_s = silence_s / 20
        self._timeout: asyncio.Timeout | None = None
        self._set_at = 0.0
        self.has_heard = False

    @contextlib.asynccontextmanager
    async def over(self) -> AsyncIterator[None]:
        """Apply the timeout to a ``with`` block. Raises :class:`CallFailed` ("timeout")."""
        try:
            self._set_at = asyncio.get_running_loop().time()
            async with asyncio.timeout(self._silence_s + self._slack_s) as self._timeout:
                yield
        except TimeoutError:
            raise CallFailed("timeout", f"the server sent nothing for {self._silence_s:g} s") from None

    def heard(self) -> None:
        """Restart the timeout when data arrives."""
        self.has_heard = True
        now = asyncio.get_running_loop().time()
        # Resetting the timer for each of thousands of events would cost more than decoding them.
        if self._timeout is not None and now - self._set_at >= self._slack_s:
            self._set_at = now
            self._timeout.reschedule(now + self._silence_s + self._slack_s)


async def drain(events: AsyncGenerator[object, None]) -> None:
    """Read a stream to its end after the reply is complete, so that the client can reuse the connection."""
    with contextlib.suppress(Exception):  # The reply is already complete.
        async with asyncio.timeout(_DRAIN_S):
            async for _ in events:
                pass


def usage_if_sent(error: Exception) -> Usage | None:
    """Return a failed call's token usage: zero if the client never connected, otherwise None (unconfirmed).

    ``error`` is an httpx2 error, or an SDK error that an httpx2 error caused.
    """
    import httpx2

    never = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
    return Usage() if isinstance(error.__cause__ or error, never) else None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Convert ``Retry-After``, in seconds or as a date (RFC 9110, 10.2.3), to seconds."""
    if (request := headers.get("retry-after")) is None:
        return None
    try:
        return max(0.0, float(request))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(request).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def must_be_events(headers: Mapping[str, str]) -> None:
    """Raise :class:`CallFailed` if a 200 response is not an event stream, for example a proxy's login page."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "text/event-stream":
        raise CallFailed(
            "broken_reply",
            f"the server answered with status 200 and {kind or 'no content type'} instead of an event stream",
        )


def short(message: object) -> str:
    """Shorten a server's message to one line of valid Unicode."""
    text = " ".join(str(message).encode(errors="replace").decode().split())
    return text if len(text) <= _MESSAGE else text[: _MESSAGE - 3] + "..."
