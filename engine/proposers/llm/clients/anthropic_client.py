"""Streaming client for Anthropic's Messages API, based on the ``anthropic`` SDK.

The client imports the SDK on the first call, because the import takes a second. The client disables the SDK's retries.
A streamed reply is complete only if the ``message_stop`` event has arrived. The SDK handles addresses, keys, errors and
streams. The client reads the events as plain JSON (``wire.py`` says why).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from engine.config.model_tables import AnthropicModel
from engine.proposers.llm.clients import anthropic_wire
from engine.proposers.llm.clients.keys import without_key
from engine.proposers.llm.clients.streaming import (
    Growing,
    Watch,
    drain,
    must_be_events,
    retry_after_s,
    short,
    usage_if_sent,
)
from engine.proposers.llm.clients.wire import read
from engine.proposers.llm.model_protocol import CallFailed, Prompt, Reply
from engine.session.records.model_calls import FailureKind, Finish, Usage
from engine.system.background_import import imported

if TYPE_CHECKING:
    from anthropic import APIStatusError, AsyncAnthropic

OFFICIAL = "https://api.anthropic.com"
_READ = frozenset({"message_start", "content_block_delta", "message_delta", "message_stop"})
_FINISH: dict[str, Finish] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_KINDS: dict[str, FailureKind] = {
    "authentication_error": "key",
    "permission_error": "key",
    "billing_error": "quota",
    "not_found_error": "unknown_model",
    "rate_limit_error": "rate_limit",
    "invalid_request_error": "bad_request",
    "request_too_large": "bad_request",
    "timeout_error": "server",
    "overloaded_error": "server",
    "api_error": "server",
}
"""Kinds of failure by Anthropic's error types (platform.claude.com/docs/en/api/errors)."""


class AnthropicClient:
    """A client for one Anthropic model. The client sends ``key`` only to ``base_url`` or Anthropic."""

    provider = "anthropic"

    def __init__(self, config: AnthropicModel, key: str) -> None:
        self.model = config.model
        self.limit = config.output_limit
        self._config = config
        self._key = key
        self._sdk: AsyncAnthropic | None = None

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
            failure = _failure_of(error)
        # Raise outside the handlers, so that no traceback exposes a request with its headers.
        raise without_key(failure, self._config, self._key)

    async def close(self) -> None:
        """Release connections. Idempotent."""
        if self._sdk is not None:
            await self._sdk.close()
            self._sdk = None

    async def _start(self) -> AsyncAnthropic:
        anthropic = await imported("anthropic")
        transport = await imported("engine.proposers.llm.clients.transport")
        if self._sdk is None:
            self._sdk = anthropic.AsyncAnthropic(
                api_key=self._key,
                base_url=self._config.base_url or OFFICIAL,
                max_retries=0,
                timeout=self._config.timeout_s,
                http_client=transport.http_client(self._config.timeout_s),
            )
        return self._sdk

    async def _ask(self, sdk: AsyncAnthropic, prompt: Prompt, text: Growing, watch: Watch) -> Reply:
        counts, answered, ended = anthropic_wire.Counted(), "", ""
        async with aclosing(self._events(sdk, prompt, watch)) as events:
            async for content in events:
                if not isinstance(content, dict) or content.get("type") not in _READ:
                    continue
                event = read(content, anthropic_wire.Event)
                if event.message is not None:
                    answered = event.message.model
                    counts = event.message.usage or counts
                if event.usage is not None:
                    counts = counts.updated(event.usage)
                if event.delta is not None:
                    ended = event.delta.stop_reason or ended
                    if event.delta.type == "text_delta":
                        text.add(event.delta.text)
                if event.type == "message_stop":
                    await drain(events)
                    finish = "length" if text.too_long else _FINISH.get(ended, "stop")
                    tier = short(counts.service_tier or "")
                    return Reply(text.text, short(answered) or self.model, counts.usage, finish, tier)
        # Only the event with the stop reason has the final token counts.
        raise CallFailed(
            "cut_short", "the server ended the stream without message_stop", usage=counts.usage if ended else None
        )

    async def _events(self, sdk: AsyncAnthropic, prompt: Prompt, watch: Watch) -> AsyncGenerator[object, None]:
        """Yield a streamed reply's events as JSON."""
        from anthropic import AsyncStream

        body = anthropic_wire.request(self._config, prompt)
        stream = await sdk.post(
            anthropic_wire.PATH, cast_to=object, body=body, stream=True, stream_cls=AsyncStream[object]
        )
        async with stream:
            must_be_events(stream.response.headers)
            async for content in stream:
                watch.heard()
                yield content


def _failure_of(error: Exception) -> CallFailed:
    """Convert an SDK error to :class:`CallFailed`."""
    import anthropic
    import httpx2

    if isinstance(error, anthropic.APIStatusError):
        said = short(error.api_message or error.message)
        if error.status_code < 400:  # This is an error event within a stream.
            return CallFailed(_kind_of(error), said)
        wait_s = retry_after_s(error.response.headers)
        return CallFailed(_kind_of(error), f"{error.status_code}: {said}", wait_s, Usage())
    if isinstance(error, anthropic.APITimeoutError | httpx2.TimeoutException):
        return CallFailed("timeout", "the server did not answer in time", usage=usage_if_sent(error))
    if isinstance(error, anthropic.APIConnectionError | httpx2.TransportError):
        cause = error.__cause__ or error
        return CallFailed("connection", short(cause) or type(cause).__name__, usage=usage_if_sent(error))
    if isinstance(error, ValueError):
        return CallFailed("broken_reply", f"the stream contains malformed JSON ({short(error)})")
    return CallFailed("broken_reply", f"the response is unreadable ({type(error).__name__}: {short(error)})")


def _kind_of(error: APIStatusError) -> FailureKind:
    """Classify an error by Anthropic's error type or, if the response has none, by the HTTP status."""
    # Anthropic reports requests from accounts without credit as invalid requests.
    if error.status_code == 402 or "credit balance is too low" in (error.api_message or ""):
        return "quota"
    if (known := _KINDS.get(str(error.type))) is not None:
        return known
    if error.status_code in (401, 403):
        return "key"
    if error.status_code == 404:
        return "unknown_model"
    if error.status_code == 429:
        return "rate_limit"
    is_rejected = 400 <= error.status_code < 500 and error.status_code not in (408, 409)
    return "bad_request" if is_rejected else "server"
