"""What Gemini's streams say, as far as it is read, and what its requests say.

The SDK can build requests of its own classes and give every chunk as one; that costs three times what all else of a
call does, and a search streams from many models while kernels are timed on the same machine.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from engine.config_models import GeminiModel
from engine.models.protocol import CallFailed, Prompt, Usage

Count = Annotated[int, Meta(ge=0)]


class Part(Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None


class Content(Struct, rename="camel"):
    parts: list[Part] | None = None


class Candidate(Struct, rename="camel"):
    content: Content | None = None
    finish_reason: str | None = None


class Feedback(Struct, rename="camel"):
    block_reason: str | None = None


class UsageMetadata(Struct, rename="camel"):
    """``thoughts_token_count`` is beside ``candidates_token_count``, ``cached_content_token_count`` a part of the
    prompt's."""

    prompt_token_count: Count | None = None
    tool_use_prompt_token_count: Count | None = None
    candidates_token_count: Count | None = None
    thoughts_token_count: Count | None = None
    cached_content_token_count: Count | None = None


class Chunk(Struct, rename="camel"):
    """A chunk of a stream. A prompt that was blocked has no candidates."""

    candidates: list[Candidate] | None = None
    prompt_feedback: Feedback | None = None
    usage_metadata: UsageMetadata | None = None
    model_version: str | None = None

    @property
    def candidate(self) -> Candidate:
        return self.candidates[0] if self.candidates else Candidate()

    @property
    def words(self) -> str:
        """The part of the reply that it brings, without thoughts."""
        content = self.candidate.content
        parts = content.parts or [] if content is not None else []
        return "".join(part.text for part in parts if part.text and not part.thought)

    @property
    def finish_reason(self) -> str:
        """How the reply ended, "" where it goes on."""
        if self.prompt_feedback is not None and self.prompt_feedback.block_reason is not None:
            return self.prompt_feedback.block_reason
        return self.candidate.finish_reason or ""

    @property
    def usage(self) -> Usage | None:
        said = self.usage_metadata
        if said is None:
            return None
        thoughts = said.thoughts_token_count or 0
        return Usage(
            input=(said.prompt_token_count or 0) + (said.tool_use_prompt_token_count or 0),
            output=(said.candidates_token_count or 0) + thoughts,
            cached=said.cached_content_token_count or 0,
            reasoning=thoughts,
        )


_chunks = msgspec.json.Decoder(Chunk)


def read(body: str | None) -> Chunk:
    """A chunk of a stream. Raises :class:`CallFailed` for one that the protocol does not have."""
    try:
        return _chunks.decode(body or "{}")
    except msgspec.DecodeError as error:
        raise CallFailed("broken_reply", f"a chunk of the stream is none of the protocol's: {error}") from None


def request(prompt: Prompt, config: GeminiModel) -> dict[str, Any]:
    """The body of a request for content."""
    generation: dict[str, Any] = {"maxOutputTokens": config.output_limit}
    if config.thinking_level is not None:
        generation["thinkingConfig"] = {"thinkingLevel": config.thinking_level.upper()}
    elif config.thinking_budget is not None:
        generation["thinkingConfig"] = {"thinkingBudget": config.thinking_budget}
    if prompt.schema is not None and config.structured:
        generation |= {"responseMimeType": "application/json", "responseJsonSchema": prompt.schema}
    body: dict[str, Any] = {
        "contents": [{"parts": [{"text": prompt.user}], "role": "user"}],
        "systemInstruction": {"parts": [{"text": prompt.system}]},
        "generationConfig": generation,
    }
    if config.service_tier is not None:
        body["serviceTier"] = config.service_tier
    return body
