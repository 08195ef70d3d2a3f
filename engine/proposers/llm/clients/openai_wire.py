"""The fields that the client needs from the streams of OpenAI's Responses and Chat Completions APIs."""

from __future__ import annotations

from msgspec import Struct

from engine.proposers.llm.clients.wire import Count
from engine.session.records.model_calls import Usage


class InputDetails(Struct):
    cached_tokens: Count | None = None
    cache_write_tokens: Count | None = None


class OutputDetails(Struct):
    reasoning_tokens: Count | None = None


class ResponsesUsage(Struct):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    total_tokens: Count | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class ChatUsage(Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    total_tokens: Count | None = None
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None


class Fault(Struct):
    message: str | None = None
    code: str | int | None = None
    type: str | None = None


class Incomplete(Struct):
    reason: str | None = None


class Part(Struct):
    type: str = ""
    text: str | None = None


class Item(Struct):
    type: str = ""
    content: list[Part] | None = None


class Response(Struct):
    """The ``response`` object in a stream's terminal event."""

    model: str = ""
    status: str | None = None
    usage: ResponsesUsage | None = None
    error: Fault | None = None
    incomplete_details: Incomplete | None = None
    service_tier: str | None = None
    output: list[Item] | None = None

    @property
    def refused(self) -> bool:
        return any(part.type == "refusal" for item in self.output or () for part in item.content or ())


class Event(Struct):
    """One event in a Responses stream."""

    type: str
    delta: str = ""
    response: Response | None = None
    message: str | None = None
    code: str | None = None


class Delta(Struct):
    """The next part of a reply. Mistral's reasoning models send ``content`` as a list of thinking and text parts."""

    content: str | list[Part] | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content if part.type == "text")
        return self.content or ""


class Choice(Struct):
    delta: Delta | None = None
    finish_reason: str | None = None


class Chunk(Struct):
    """One chunk in a chat-completions stream. The last chunk contains the token usage and no choices."""

    model: str | None = None
    service_tier: str | None = None
    choices: list[Choice] | None = None
    usage: ChatUsage | None = None


def responses_usage(usage: ResponsesUsage | None) -> Usage | None:
    if usage is None:
        return None
    given, made = usage.input_tokens_details or InputDetails(), usage.output_tokens_details or OutputDetails()
    return _usage(usage.input_tokens, usage.output_tokens, usage.total_tokens, given, made)


def chat_usage(usage: ChatUsage | None) -> Usage | None:
    if usage is None:
        return None
    given, made = usage.prompt_tokens_details or InputDetails(), usage.completion_tokens_details or OutputDetails()
    return _usage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, given, made)


def _usage(
    input_tokens: int | None,
    output_tokens: int | None,
    total_tokens: int | None,
    given: InputDetails,
    made: OutputDetails,
) -> Usage | None:
    if total_tokens is None and (input_tokens is None or output_tokens is None):
        return None
    input_tokens, output_tokens = input_tokens or 0, output_tokens or 0
    return Usage(
        input=input_tokens,
        # Some servers, such as xAI's, count reasoning tokens only in the total.
        output=max(output_tokens, (total_tokens or 0) - input_tokens),
        cached=given.cached_tokens or 0,
        reasoning=made.reasoning_tokens or 0,
        cache_written=given.cache_write_tokens or 0,
    )
