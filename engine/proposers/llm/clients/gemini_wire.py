"""Requests to Gemini's ``generateContent``, and the fields that the client needs from its streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from engine.config.model_tables import GeminiModel
from engine.proposers.llm.clients.wire import Count
from engine.proposers.llm.model_protocol import Prompt
from engine.session.records.model_calls import Usage


class Part(Struct):
    text: str | None = None
    thought: bool | None = None


class Content(Struct):
    parts: list[Part] | None = None


class Candidate(Struct, rename="camel"):
    content: Content | None = None
    finish_reason: str | None = None


class Feedback(Struct, rename="camel"):
    """Gemini's feedback on the prompt."""

    block_reason: str | None = None


class Counted(Struct, rename="camel"):
    prompt_token_count: Count | None = None
    tool_use_prompt_token_count: Count | None = None
    candidates_token_count: Count | None = None
    thoughts_token_count: Count | None = None
    cached_content_token_count: Count | None = None

    @property
    def usage(self) -> Usage:
        """Convert the token counts to ``Usage``. Gemini bills thinking tokens in addition to the candidates' tokens."""
        thoughts = self.thoughts_token_count or 0
        return Usage(
            input=(self.prompt_token_count or 0) + (self.tool_use_prompt_token_count or 0),
            output=(self.candidates_token_count or 0) + thoughts,
            cached=self.cached_content_token_count or 0,
            reasoning=thoughts,
        )


class Chunk(Struct, rename="camel"):
    """One event in Gemini's stream."""

    candidates: list[Candidate] | None = None
    prompt_feedback: Feedback | None = None
    usage_metadata: Counted | None = None
    model_version: str | None = None

    def words(self) -> Iterator[str]:
        """Yield the reply's text, without thoughts."""
        for candidate in (self.candidates or [])[:1]:
            for part in (candidate.content.parts or []) if candidate.content is not None else []:
                if part.text and not part.thought:
                    yield part.text

    @property
    def end(self) -> str:
        """The reason why the reply ended; "" while the reply continues. A blocked prompt has no candidates."""
        if self.prompt_feedback is not None and self.prompt_feedback.block_reason is not None:
            return self.prompt_feedback.block_reason
        for candidate in (self.candidates or [])[:1]:
            if candidate.finish_reason is not None:
                return candidate.finish_reason
        return ""


def path(model: str) -> str:
    """Return the URL path for streaming from ``model``, relative to the API version's address."""
    name = model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"
    return f"{name}:streamGenerateContent?alt=sse"


def request(config: GeminiModel, prompt: Prompt) -> dict[str, object]:
    """Build a request's body (ai.google.dev/api/generate-content)."""
    generation: dict[str, Any] = {"maxOutputTokens": config.output_limit}
    if config.thinking_level is not None:
        generation["thinkingConfig"] = {"thinkingLevel": config.thinking_level.upper()}
    elif config.thinking_budget is not None:
        generation["thinkingConfig"] = {"thinkingBudget": config.thinking_budget}
    if prompt.schema is not None and config.structured:
        generation |= {"responseMimeType": "application/json", "responseJsonSchema": prompt.schema}
    body: dict[str, object] = {
        "contents": [{"role": "user", "parts": [{"text": prompt.user}]}],
        "systemInstruction": {"role": "user", "parts": [{"text": prompt.system}]},
        "generationConfig": generation,
    }
    if config.service_tier is not None:
        body["serviceTier"] = config.service_tier
    return body
