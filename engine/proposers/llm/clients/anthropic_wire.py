"""Requests to Anthropic's Messages API, and the fields that the client needs from its streams."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from engine.config.model_tables import AnthropicModel
from engine.proposers.llm.clients.wire import Count
from engine.proposers.llm.model_protocol import Prompt
from engine.session.records.model_calls import Usage

PATH = "/v1/messages"


class OutputDetails(Struct):
    thinking_tokens: Count | None = None


class Counted(Struct):
    """Token counts in an event. If a count changes, a later event contains the new total."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    output_tokens_details: OutputDetails | None = None
    service_tier: str | None = None

    def updated(self, later: Counted) -> Counted:
        """Return these counts, updated with the counts in ``later``."""
        return Counted(
            *(
                new if (new := getattr(later, name)) is not None else getattr(self, name)
                for name in self.__struct_fields__
            )
        )

    @property
    def usage(self) -> Usage:
        """Convert the token counts to ``Usage``. Anthropic counts cached tokens separately from input tokens."""
        cached, written = self.cache_read_input_tokens or 0, self.cache_creation_input_tokens or 0
        details = self.output_tokens_details or OutputDetails()
        return Usage(
            input=(self.input_tokens or 0) + cached + written,
            output=self.output_tokens or 0,
            cached=cached,
            reasoning=details.thinking_tokens or 0,
            cache_written=written,
        )


class Message(Struct):
    model: str = ""
    usage: Counted | None = None


class Delta(Struct):
    """A part of a content block, or the end of the message."""

    type: str = ""
    text: str = ""
    stop_reason: str | None = None


class Event(Struct):
    """One event in Anthropic's stream."""

    type: str
    message: Message | None = None
    delta: Delta | None = None
    usage: Counted | None = None


def request(config: AnthropicModel, prompt: Prompt) -> dict[str, object]:
    """Build the body of a streaming request (platform.claude.com/docs/en/api/messages)."""
    body: dict[str, object] = {
        "model": config.model,
        "max_tokens": config.output_limit,
        "system": prompt.system,
        "messages": [{"role": "user", "content": prompt.user}],
        "stream": True,
    }
    output: dict[str, Any] = {}
    if config.effort is not None:
        output["effort"] = config.effort
    if prompt.schema is not None and config.structured:
        output["format"] = {"type": "json_schema", "schema": prompt.schema}
    if output:
        body["output_config"] = output
    if config.thinking is not None:
        body["thinking"] = {"type": config.thinking}
    elif config.thinking_budget is not None:
        body["thinking"] = {"type": "enabled", "budget_tokens": config.thinking_budget}
    if config.service_tier is not None:
        body["service_tier"] = config.service_tier
    return body
