"""Parse requests of every wire format into one form."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

Dialect = Literal["responses", "chat", "gemini", "anthropic", "command"]


@dataclass(frozen=True)
class Asked:
    """``key``: as sent. ``schema``: of a structured reply, None for free text. ``body``: everything else."""

    dialect: Dialect
    model: str
    system: str
    user: str
    stream: bool
    key: str
    schema: dict[str, Any] | None
    limit: int | None
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        return self.system + self.user


def asked_of(path: str, headers: dict[str, str], body: bytes) -> Asked | None:
    """Return the request of a POST, or None for an address outside the protocols."""
    place = unquote(urlsplit(path).path)
    content = json.loads(body or b"{}")
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    if place.endswith("/responses"):
        language = (content.get("text") or {}).get("format") or {}
        return Asked(
            "responses",
            content["model"],
            content.get("instructions") or "",
            content["input"],
            bool(content.get("stream")),
            bearer,
            language.get("schema"),
            content.get("max_output_tokens"),
            content,
        )
    if place.endswith("/chat/completions"):
        texts = {message["role"]: message["content"] for message in content["messages"]}
        language = content.get("response_format") or {}
        return Asked(
            "chat",
            content["model"],
            texts.get("system", ""),
            texts["user"],
            bool(content.get("stream")),
            bearer,
            (language.get("json_schema") or {}).get("schema"),
            content.get("max_tokens") or content.get("max_completion_tokens"),
            content,
        )
    if place.endswith("/v1/messages"):
        language = (content.get("output_config") or {}).get("format") or {}
        return Asked(
            "anthropic",
            content["model"],
            content.get("system") or "",
            "".join(message["content"] for message in content["messages"]),
            bool(content.get("stream")),
            bearer or headers.get("x-api-key", ""),
            language.get("schema"),
            content["max_tokens"],
            content,
        )
    if place == "/command":
        system, _, user = content["prompt"].partition("\n\n")
        return Asked("command", content["model"], system, user, True, bearer, None, None, content)
    model, _, method = place.rpartition("/")[2].partition(":")
    if method in ("generateContent", "streamGenerateContent"):
        settings = content.get("generationConfig") or {}
        return Asked(
            "gemini",
            model,
            _gemini_text(content.get("systemInstruction") or {}),
            "".join(_gemini_text(one) for one in content["contents"]),
            method == "streamGenerateContent",
            headers.get("x-goog-api-key", ""),
            settings.get("responseJsonSchema") or settings.get("responseSchema"),
            settings.get("maxOutputTokens"),
            content,
        )
    return None


def _gemini_text(content: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in content.get("parts", []))
