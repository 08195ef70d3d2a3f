"""OpenAI and whoever speaks its protocols: Responses for api.openai.com, chat completions for any ``base_url``.

The SDK is imported at the first call (a second), its retries are off. A stream counts as a reply only when its terminal
event came; both protocols may end early without any error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.config_models import OpenAIModel
from engine.models.keys import without_keys
from engine.models.protocol import CallFailed, FailureKind, Finish, Prompt, Reply, Usage
from engine.models.streaming import Growing, Watch, must_be_events, retry_after_s, short

if TYPE_CHECKING:
    from openai import APIError, AsyncOpenAI
    from openai.types import CompletionUsage
    from openai.types.responses import Response, ResponseUsage

OFFICIAL = "https://api.openai.com/v1"
_CONNECT_S = 30.0
_FINISH: dict[str, Finish] = {"length": "length", "content_filter": "refusal"}


class OpenAIClient:
    """One model. ``key`` is sent to ``base_url`` (or OpenAI) and nowhere else."""

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
        """One attempt. ``on_text`` is given the text so far while it streams. Raises :class:`CallFailed`."""
        sdk = self._sdk if self._sdk is not None else await self._start()
        watch = Watch(self._config.timeout_s)
        attempt = self._respond if self._api == "responses" else self._chat
        try:
            async with watch.over():
                return await attempt(sdk, prompt, Growing(on_text), watch)
        except CallFailed as error:
            failure = error
        except Exception as error:  # the SDK's own classes are known only once it is imported
            failure = _failure_of(error)
        # Outside the handlers, so that no traceback leads to a request and its headers.
        raise CallFailed(failure.kind, without_keys(str(failure), (self._key,)), failure.retry_after_s, failure.usage)

    async def close(self) -> None:
        """Release connections. Idempotent."""
        if self._sdk is not None:
            await self._sdk.close()
            self._sdk = None

    async def _start(self) -> AsyncOpenAI:
        openai = await asyncio.to_thread(import_module, "openai")
        httpx2 = import_module("httpx2")
        if self._sdk is None:
            timeout_s = self._config.timeout_s
            self._sdk = openai.AsyncOpenAI(
                api_key=self._key,
                base_url=self._config.base_url or OFFICIAL,
                max_retries=0,
                timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S)),
            )
        return self._sdk

    # Responses

    async def _respond(self, sdk: AsyncOpenAI, prompt: Prompt, text: Growing, watch: Watch) -> Reply:
        config = self._config
        options: dict[str, Any] = {}
        if config.effort is not None:
            options["reasoning"] = {"effort": config.effort}
        if config.service_tier is not None:
            options["service_tier"] = config.service_tier
        if (schema := self._schema(prompt)) is not None:
            options["text"] = {"format": {"type": "json_schema", **schema}}
        stream = await sdk.responses.create(
            model=self.model,
            instructions=prompt.system,
            input=prompt.user,
            max_output_tokens=self.limit,
            store=False,
            stream=True,
            **options,
        )
        async with stream:
            must_be_events(stream.response.headers)
            async for event in stream:
                watch.heard()
                if event.type in ("response.output_text.delta", "response.refusal.delta"):
                    text.add(event.delta)
                elif event.type in ("response.completed", "response.incomplete"):
                    return _reply_of(event.response, text)
                elif event.type == "response.failed":
                    raise _failed_response(event.response)
                elif event.type == "error":
                    raise CallFailed(_kind_of(None, event.code, None), short(event.message))
        raise CallFailed("cut_short", "the stream ended without response.completed")

    # Chat completions

    async def _chat(self, sdk: AsyncOpenAI, prompt: Prompt, text: Growing, watch: Watch) -> Reply:
        config = self._config
        options: dict[str, Any] = {"max_completion_tokens" if self._official else "max_tokens": self.limit}
        if config.effort is not None:
            options["reasoning_effort"] = config.effort
        if config.service_tier is not None:
            options["service_tier"] = config.service_tier
        if (schema := self._schema(prompt)) is not None:
            options["response_format"] = {"type": "json_schema", "json_schema": schema}
        stream = await sdk.chat.completions.create(
            model=self.model,
            messages=[{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
            stream=True,
            stream_options={"include_usage": True},
            **options,
        )
        ended, usage, answered, tier, refused = "", None, "", "", False
        async with stream:
            must_be_events(stream.response.headers)
            async for chunk in stream:
                watch.heard()
                answered, tier = chunk.model or answered, chunk.service_tier or tier
                usage = _chat_usage(chunk.usage) if chunk.usage is not None else usage
                for choice in (chunk.choices or [])[:1]:
                    refused |= bool(choice.delta and choice.delta.refusal)
                    text.add((choice.delta.content or choice.delta.refusal) if choice.delta else None)
                    ended = choice.finish_reason or ended
        if not ended:
            raise CallFailed("cut_short", "the stream ended without a finish_reason", usage=usage)
        if ended == "error":
            raise CallFailed("server", "the stream ended with finish_reason error", usage=usage)
        finish: Finish = "refusal" if refused else _FINISH.get(ended, "stop")
        return Reply(text.text, answered or self.model, usage, "length" if text.too_long else finish, tier)

    def _schema(self, prompt: Prompt) -> dict[str, Any] | None:
        if prompt.schema is None or not self._config.structured:
            return None
        return {"name": prompt.purpose, "strict": True, "schema": prompt.schema}


def _reply_of(response: Response, text: Growing) -> Reply:
    finish: Finish = "stop"
    if response.status == "incomplete":
        reason = response.incomplete_details.reason if response.incomplete_details is not None else None
        finish = "refusal" if reason == "content_filter" else "length"
    elif any(part.type == "refusal" for item in response.output if item.type == "message" for part in item.content):
        finish = "refusal"
    usage = _responses_usage(response.usage) if response.usage is not None else None
    return Reply(text.text, response.model, usage, "length" if text.too_long else finish, response.service_tier or "")


def _failed_response(response: Response) -> CallFailed:
    code, message = (response.error.code, response.error.message) if response.error is not None else (None, "")
    usage = _responses_usage(response.usage) if response.usage is not None else None
    return CallFailed(_kind_of(None, code, None), short(message) or "the response failed", usage=usage)


def _responses_usage(usage: ResponseUsage) -> Usage:
    # Servers that imitate the protocol leave the details out.
    given, made = usage.input_tokens_details, usage.output_tokens_details
    return Usage(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cached=getattr(given, "cached_tokens", None) or 0,
        reasoning=getattr(made, "reasoning_tokens", None) or 0,
        cache_written=getattr(given, "cache_write_tokens", None) or 0,
    )


def _chat_usage(usage: CompletionUsage) -> Usage:
    given, made = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        input=usage.prompt_tokens,
        output=usage.completion_tokens,
        cached=getattr(given, "cached_tokens", None) or 0,
        reasoning=getattr(made, "reasoning_tokens", None) or 0,
        cache_written=getattr(given, "cache_write_tokens", None) or 0,
    )


def _failure_of(error: Exception) -> CallFailed:
    """What an SDK's error means for the call."""
    import httpx2
    import openai

    if isinstance(error, openai.APIStatusError):
        kind = _kind_of(error.status_code, error.code, error.type)
        message = f"{error.status_code}: {short(_said(error))}"
        return CallFailed(kind, message, retry_after_s(error.response.headers), Usage())
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return CallFailed("timeout", "the server did not answer in time", usage=_if_sent(error))
    if isinstance(error, openai.APIConnectionError | httpx2.TransportError):
        cause = error.__cause__ or error
        return CallFailed("connection", f"{short(cause) or type(cause).__name__}", usage=_if_sent(error))
    if isinstance(error, openai.APIError):  # an error inside a stream
        return CallFailed(_kind_of(None, error.code, error.type), short(_said(error)))
    if isinstance(error, json.JSONDecodeError):
        return CallFailed("broken_reply", f"the stream holds malformed JSON ({short(error)})")
    return CallFailed("broken_reply", f"{type(error).__name__}: {short(error)}")


def _if_sent(error: Exception) -> Usage | None:
    """Nothing was billed for a connection that never came about; of any other nobody knows."""
    import httpx2

    never = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
    return Usage() if isinstance(error.__cause__ or error, never) else None


def _said(error: APIError) -> object:
    """The server's own words."""
    body = error.body
    said = body.get("message") if isinstance(body, dict) else None
    return said or error.message


def _kind_of(status: int | None, code: str | None, type_: str | None) -> FailureKind:
    """By what the server calls the error, and else by the status."""
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
