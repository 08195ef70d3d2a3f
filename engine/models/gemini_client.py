"""Google Gemini by google-genai: streamed, over an HTTP client of our own (or the SDK would change its transport
whenever aiohttp happens to be installed).

The SDK is imported at the first call (a second) and repeats nothing by itself. Its time-outs are in milliseconds. A
stream counts as a reply only when a ``finish_reason`` came. Addresses, keys, errors and streams are the SDK's; its
classes for requests and replies are passed by, which needs a method that it does not document: a stream of plain JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from engine.config_models import GeminiModel
from engine.models import gemini_wire
from engine.models.importing import imported
from engine.models.keys import refused_key, without_keys
from engine.models.protocol import CallFailed, FailureKind, Finish, Prompt, Reply, Usage
from engine.models.streaming import Growing, Watch, retry_after_s, short
from engine.models.wire import read

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
"""Every other finish reason is a filter's."""


class GeminiClient:
    """One model. ``key`` is sent to ``base_url`` (or Google) and nowhere else."""

    provider = "gemini"

    def __init__(self, config: GeminiModel, key: str) -> None:
        self.model = config.model
        self.limit = config.output_limit
        self._config = config
        self._key = key
        self._sdk: Client | None = None
        self._http: Any = None

    async def complete(self, prompt: Prompt, on_text: Callable[[str], None]) -> Reply:
        """One attempt. ``on_text`` is given the text so far while it streams. Raises :class:`CallFailed`."""
        sdk = self._sdk if self._sdk is not None else await self._start()
        watch = Watch(self._config.timeout_s)
        try:
            async with watch.over():
                return await self._ask(sdk, prompt, Growing(on_text), watch)
        except CallFailed as error:
            failure = error
        except Exception as error:  # the SDK's own classes are known only once it is imported
            failure = _failure_of(error, streaming=watch.has_heard)
        # Outside the handlers, so that no traceback leads to a request and its headers.
        message = without_keys(str(failure), (self._key,))
        if failure.kind == "key":
            message = refused_key(self._config, message)
        raise CallFailed(failure.kind, message, failure.retry_after_s, failure.usage)

    async def close(self) -> None:
        """Release connections. Idempotent."""
        if self._sdk is not None:
            self._sdk = None
            await self._http.aclose()

    async def _start(self) -> Client:
        genai = await imported("google.genai")
        transport = await imported("engine.models.transport")
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
            raise CallFailed("cut_short", "the stream ended without a finish_reason")
        finish = "length" if text.too_long else _FINISH.get(ended, "refusal")
        return Reply(text.text, short(answered) or self.model, usage, finish)


def _failure_of(error: Exception, *, streaming: bool) -> CallFailed:
    """What an SDK's error means for the call. ``streaming``: a part of the reply had come."""
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
    if isinstance(error, ValueError):  # also the SDK's UnknownApiResponseError, whose text is the whole answer
        return CallFailed("broken_reply", f"the answer is no JSON: {short(error)}")
    return CallFailed("broken_reply", f"the answer cannot be read ({type(error).__name__}: {short(error)})")


def _kind_of(error: APIError) -> FailureKind:
    code, status, said = error.code or 0, error.status or "", str(error.details)
    if "API_KEY_INVALID" in said or "API key not valid" in said or code in (401, 403):
        return "key"
    if code == 404 or status == "NOT_FOUND":
        return "unknown_model"
    if code == 429:
        # The message is the same for both; only a daily quota is hopeless, and its violation names the day.
        return "quota" if re.search(r"PerDay|FreeTier.*limit: 0\b", said) else "rate_limit"
    return "server" if code >= 500 or code in (0, 408, 409) else "bad_request"


def _retry_info_s(error: APIError) -> float | None:
    """``google.rpc.RetryInfo`` in the body: ``"retryDelay": "34s"``."""
    found = re.search(r"'retryDelay': '(\d+(?:\.\d+)?)s'", str(error.details))
    return float(found[1]) if found is not None else None
