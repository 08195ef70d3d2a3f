"""Client for OpenAI and compatible servers: the Responses API for api.openai.com, and chat completions for any
``base_url``.

The client imports the SDK on the first call, because the import takes a second. The client disables the SDK's retries.
A streamed reply is complete only if its terminal event has arrived, because streams of both APIs may end early without
an error.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from engine.config.model_tables import OpenAIModel
from engine.proposers.llm.clients import openai_wire
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
    from openai import APIError, AsyncOpenAI

OFFICIAL = "https://api.openai.com/v1"
_READ = frozenset(
    {
        "response.output_text.delta",
        "response.refusal.delta",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
    }
)
_FINISH: dict[str, Finish] = {"length": "length", "content_filter": "refusal"}


class OpenAIClient:
    """A client for one OpenAI model. The client sends ``key`` only to ``base_url`` or OpenAI."""

    provider = "openai"

    def __init__(self, config: OpenAIModel, key: str) -> None:
        self.model = config.model
        self.limit = config.output_limit
        self._config = config
        self._key = key
        self._sdk: AsyncOpenAI | None = None
        self._official = config.base_url is None
        self._api = config.api or ("responses" if self._official else "chat")

    async def complete(self, prompt: Prompt, on_text: Callable[[str], None]) -> Reply:
        """Make one attempt. While the reply is streaming, call ``on_text`` with the text so far. Raises
        :class:`CallFailed`.
        """
        sdk = self._sdk if self._sdk is not None else await self._start()
        watch = Watch(self._config.timeout_s)
        attempt = self._respond if self._api == "responses" else self._chat
        try:
            async with watch.over():
                return await attempt(sdk, prompt, Growing(on_text), watch)
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

    async def _start(self) -> AsyncOpenAI:
        openai = await imported("openai")
        transport = await imported("engine.proposers.llm.clients.transport")
        if self._sdk is None:
            self._sdk = openai.AsyncOpenAI(
                api_key=self._key,
                base_url=self._config.base_url or OFFICIAL,
                max_retries=0,
                timeout=self._config.timeout_s,
                http_client=transport.http_client(self._config.timeout_s),
            )
        return self._sdk

    # Responses

    async def _respond(self, sdk: AsyncOpenAI, prompt: Prompt, text: Growing, watch: Watch) -> Reply:
        body = {
            "model": self.model,
            "instructions": prompt.system,
            "input": prompt.user,
            "max_output_tokens": self.limit,
            "store": False,
        }
        if self._config.effort is not None:
            body["reasoning"] = {"effort": self._config.effort}
        if (schema := self._schema(prompt)) is not None:
            body["text"] = {"format": {"type": "json_schema", **schema}}
        async with aclosing(self._events(sdk, "/responses", body, watch)) as events:
            async for content in events:
                kind = content.get("type") if isinstance(content, dict) else None
                if kind not in _READ:
                    continue
                event = read(content, openai_wire.Event)
                response = event.response or openai_wire.Response()
                if kind in ("response.completed", "response.incomplete"):
                    await drain(events)
                    return self._reply(response, text)
                if kind == "response.failed":
                    fault = response.error or openai_wire.Fault()
                    said = short(fault.message or "the response failed")
                    raise CallFailed(
                        _kind_of(None, fault.code, None), said, usage=openai_wire.responses_usage(response.usage)
                    )
                if kind == "error":
                    raise CallFailed(_kind_of(None, event.code, None), short(event.message or "an error event"))
                text.add(event.delta)
        raise CallFailed("cut_short", "the server ended the stream without response.completed")

    def _reply(self, response: openai_wire.Response, text: Growing) -> Reply:
        finish: Finish = "refusal" if response.refused else "stop"
        if response.status == "incomplete":
            reason = response.incomplete_details.reason if response.incomplete_details is not None else None
            finish = "refusal" if reason == "content_filter" else "length"
        if text.too_long:
            finish = "length"
        usage, tier = openai_wire.responses_usage(response.usage), response.service_tier or ""
        return Reply(text.text, short(response.model) or self.model, usage, finish, short(tier))

    # Chat completions

    async def _chat(self, sdk: AsyncOpenAI, prompt: Prompt, text: Growing, watch: Watch) -> Reply:
        body = {
            "model": self.model,
            "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
            "max_completion_tokens" if self._official else "max_tokens": self.limit,
            "stream_options": {"include_usage": True},
        }
        if self._config.effort is not None:
            body["reasoning_effort"] = self._config.effort
        if (schema := self._schema(prompt)) is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        ended, usage, answered, tier, refused = "", None, "", "", False
        async with aclosing(self._events(sdk, "/chat/completions", body, watch)) as events:
            async for content in events:
                chunk = read(content, openai_wire.Chunk)
                answered, tier = chunk.model or answered, chunk.service_tier or tier
                usage = openai_wire.chat_usage(chunk.usage) or usage
                for choice in (chunk.choices or [])[:1]:
                    delta = choice.delta or openai_wire.Delta()
                    refused |= bool(delta.refusal)
                    text.add(delta.text or delta.refusal)
                    ended = choice.finish_reason or ended
                if ended and usage is not None:
                    await drain(events)
                    break
        if not ended:
            raise CallFailed("cut_short", "the server ended the stream without a finish_reason", usage=usage)
        if ended == "error":
            raise CallFailed("server", "the server ended the stream with finish_reason error", usage=usage)
        finish: Finish = "refusal" if refused else _FINISH.get(ended, "stop")
        finish = "length" if text.too_long else finish
        return Reply(text.text, short(answered) or self.model, usage, finish, short(tier))

    async def _events(
        self, sdk: AsyncOpenAI, path: str, body: dict[str, Any], watch: Watch
    ) -> AsyncGenerator[object, None]:
        """Yield a streamed reply's events as JSON."""
        from openai import AsyncStream

        if self._config.service_tier is not None:
            body["service_tier"] = self._config.service_tier
        stream = await sdk.post(
            path, cast_to=object, body={**body, "stream": True}, stream=True, stream_cls=AsyncStream[object]
        )
        async with stream:
            must_be_events(stream.response.headers)
            async for content in stream:
                watch.heard()
                yield content

    def _schema(self, prompt: Prompt) -> dict[str, Any] | None:
        if prompt.schema is None or not self._config.structured:
            return None
        return {"name": prompt.purpose, "strict": True, "schema": prompt.schema}


def _failure_of(error: Exception) -> CallFailed:
    """Convert an SDK error to :class:`CallFailed`."""
    import httpx2
    import openai

    if isinstance(error, openai.APIStatusError):
        kind = _kind_of(error.status_code, error.code, error.type)
        message = f"{error.status_code}: {short(_said(error))}"
        return CallFailed(kind, message, retry_after_s(error.response.headers), Usage())
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return CallFailed("timeout", "the server did not answer in time", usage=usage_if_sent(error))
    if isinstance(error, openai.APIConnectionError | httpx2.TransportError):
        cause = error.__cause__ or error
        return CallFailed("connection", f"{short(cause) or type(cause).__name__}", usage=usage_if_sent(error))
    if isinstance(error, openai.APIError):  # This is an error event within a stream.
        return CallFailed(_kind_of(None, error.code, error.type), short(_said(error)))
    if isinstance(error, json.JSONDecodeError):
        return CallFailed("broken_reply", f"the stream contains malformed JSON ({short(error)})")
    return CallFailed("broken_reply", f"the response is unreadable ({type(error).__name__}: {short(error)})")


def _said(error: APIError) -> object:
    """Return the server's error message."""
    body = error.body
    said = body.get("message") if isinstance(body, dict) else None
    return said or error.message


def _kind_of(status: int | None, code: str | int | None, type_: str | None) -> FailureKind:
    """Classify an error by the server's error code or, if the response has none, by the HTTP status."""
    names = {str(name).lower() for name in (code, type_) if name is not None}
    if names & {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"} or status == 402:
        return "quota"
    if names & {"invalid_api_key"} or status in (401, 403):
        return "key"
    if names & {"model_not_found"} or status == 404:
        return "unknown_model"
    if names & {"rate_limit_exceeded", "rate_limit_error", "429"} or status == 429:
        return "rate_limit"
    if status in (408, 409, 425) or status is None or status >= 500:
        return "bad_request" if names & {"invalid_prompt"} else "server"
    return "bad_request"
