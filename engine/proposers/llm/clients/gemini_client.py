"""Streaming client for Google Gemini, based on the ``google-genai`` SDK.

The client passes its own HTTP client to the SDK, whose default transport depends on whether aiohttp is installed. The
client imports the SDK on the first call, because the import takes a second. The client disables the SDK's retries. The
SDK's timeouts are in milliseconds. A streamed reply is complete only if it has a ``finish_reason``.

The client uses the SDK for addresses, keys, errors and streams. For requests and replies, the client bypasses the SDK's
classes and calls an undocumented method that streams plain JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from engine.config.model_tables import GeminiModel
from engine.proposers.llm.clients import gemini_wire
from engine.proposers.llm.clients.keys import without_key
from engine.proposers.llm.clients.streaming import Growing, Watch, retry_after_s, short
from engine.proposers.llm.clients.wire import read
from engine.proposers.llm.model_protocol import CallFailed, Prompt, Reply
from engine.session.records.model_calls import FailureKind, Finish, Usage
from engine.system.background_import import imported

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.errors import APIError

OFFICIAL = "https://generativelanguage.googleapis.com/"
_FINISH: dict[str, Finish] = {
    "STOP": "stop",
    "FINISH_REASON_UNSPECIFIED": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
}
"""Finish reasons of replies that passed all filters. The client reports every other reason as a refusal."""


class GeminiClient:
    """A client for one Gemini model. The client sends ``key`` only to ``base_url`` or Google."""

    provider = "gemini"

    def __init__(self, config: GeminiModel, key: str) -> None:
        self.model = config.model
        self.limit = config.output_limit
        self._config = config
        self._key = key
        self._sdk: Client | None = None
        self._http: Any = None

    async def complete(self, prompt: Prompt, on_text: Callable[[str], None]) -> Reply:
        """Make one attempt. While the reply is streaming, call ``on_text`` with the text so far. Raises
        :class:`CallFailed`.
        """
        sdk = self._sdk if self._sdk is not None else await self._start()
        watch = Watch(self._config.timeout_s)
        try:
            async with watch.over():
                return await self._ask(sdk, prompt, Growing(on_text), watch)
        except CallFailed as error:
            failure = error
        except Exception as error:  # The SDK's error classes are unknown before its import.
            failure = _failure_of(error, streaming=watch.has_heard)
        # Raise outside the handlers, so that no traceback exposes a request with its headers.
        raise without_key(failure, self._config, self._key)

    async def close(self) -> None:
        """Release connections. Idempotent."""
        if self._sdk is not None:
            self._sdk = None
            await self._http.aclose()

    async def _start(self) -> Client:
        genai = await imported("google.genai")
        transport = await imported("engine.proposers.llm.clients.transport")
        if self._sdk is None:
            timeout_s = self._config.timeout_s
            self._http = transport.http_client(timeout_s)
            self._sdk = genai.Client(
                api_key=self._key,
                vertexai=False,
                http_options=genai.types.HttpOptions(
                    base_url=self._config.base_url or OFFICIAL,
                    timeout=max(1, round(timeout_s * 1000)),
                    httpx_async_client=self._http,
                ),
            )
        return self._sdk

    async def _ask(self, sdk: Client, prompt: Prompt, text: Growing, watch: Watch) -> Reply:
        ended, usage, answered = "", None, ""
        events = await sdk.aio.models._api_client.async_request_streamed(
            "post", gemini_wire.path(self.model), gemini_wire.request(self._config, prompt)
        )
        async with aclosing(events):
            async for event in events:
                watch.heard()
                chunk = read(json.loads(event.body), gemini_wire.Chunk)
                answered = chunk.model_version or answered
                usage = chunk.usage_metadata.usage if chunk.usage_metadata is not None else usage
                ended = chunk.end or ended
                for words in chunk.words():
                    text.add(words)
        if not ended:
            raise CallFailed("cut_short", "the server ended the stream without a finish_reason")
        finish = "length" if text.too_long else _FINISH.get(ended, "refusal")
        return Reply(text.text, short(answered) or self.model, usage, finish)


def _failure_of(error: Exception, *, streaming: bool) -> CallFailed:
    """Convert an SDK error to :class:`CallFailed`. ``streaming`` says whether part of the reply had already arrived."""
    import httpx2
    from google.genai import errors

    if isinstance(error, errors.APIError):
        headers = getattr(error.response, "headers", None) or {}
        message = f"{error.code}: {short(error.message or error.status or 'no message')}"
        wait_s = max(
            (wait for wait in (retry_after_s(headers), _retry_info_s(error)) if wait is not None), default=None
        )
        return CallFailed(_kind_of(error), message, wait_s, None if streaming else Usage())
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return CallFailed("connection", short(error) or type(error).__name__, usage=Usage())
    if isinstance(error, httpx2.TimeoutException):
        return CallFailed("timeout", "the server did not answer in time")
    if isinstance(error, httpx2.TransportError):
        return CallFailed("connection", short(error) or type(error).__name__)
    # The SDK's UnknownApiResponseError, which quotes the whole response, is also a ValueError.
    if isinstance(error, ValueError):
        return CallFailed("broken_reply", f"the response is not JSON: {short(error)}")
    return CallFailed("broken_reply", f"the response is unreadable ({type(error).__name__}: {short(error)})")


def _kind_of(error: APIError) -> FailureKind:
    code, status, said = error.code or 0, error.status or "", str(error.details)
    if "API_KEY_INVALID" in said or "API key not valid" in said or code in (401, 403):
        return "key"
    if code == 404 or status == "NOT_FOUND":
        return "unknown_model"
    if code == 429:
        # Google sends the same message for rate limits and used-up quotas. Only a daily quota stays used up, and its
        # violation mentions the day.
        return "quota" if re.search(r"PerDay|FreeTier.*limit: 0\b", said) else "rate_limit"
    return "server" if code >= 500 or code in (0, 408, 409) else "bad_request"


def _retry_info_s(error: APIError) -> float | None:
    """Read ``google.rpc.RetryInfo`` from the body: ``"retryDelay": "34s"``."""
    found = re.search(r"'retryDelay': '(\d+(?:\.\d+)?)s'", str(error.details))
    return float(found[1]) if found is not None else None
