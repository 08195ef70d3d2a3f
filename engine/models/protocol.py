"""What the search asks of a language model, whoever serves it: a prompt in, a text and its usage out.

A client makes exactly one attempt per call; retries, spending and recording are ``engine.models.caller``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct

Purpose = Literal["ideas", "kernel", "fix"]

Finish = Literal["stop", "length", "refusal"]
"""How a reply ended: by itself, at the output limit, or because the model or its filter refused."""

FailureKind = Literal[
    "rate_limit",
    "quota",
    "key",
    "unknown_model",
    "bad_request",
    "server",
    "connection",
    "timeout",
    "broken_reply",
    "cut_short",
    "cancelled",
]
"""``broken_reply``: a status of 200 around something that is no reply (HTML, malformed JSON). ``cut_short``: the stream
ended without its terminal event. ``cancelled``: the search gave the call up while it was under way. ``key``, ``quota``,
``unknown_model`` and ``bad_request`` are not worth a retry."""


_FAILURES: dict[str, str] = {
    "rate_limit": "too many requests",
    "quota": "no quota left",
    "key": "key refused",
    "unknown_model": "no such model",
    "bad_request": "request refused",
    "server": "error of the server",
    "connection": "no connection",
    "timeout": "no answer",
    "broken_reply": "broken reply",
    "cut_short": "reply cut short",
    "cancelled": "given up",
}


def failure_words(kind: str) -> str:
    """What a failure is called on screen, also one that only a later version knows."""
    return _FAILURES.get(kind, kind.replace("_", " "))


HOPELESS: frozenset[str] = frozenset({"key", "quota", "unknown_model"})
"""Failures of the model rather than of the call: it is not asked again while the engine lives."""


class CallSite(Struct, frozen=True):
    """For what a call is made. Equal sites ask for the same thing: a recorded reply of a site is used again on resume.

    ``subject``: the parent's variant id for ideas ("" in round 0), the idea's id for a kernel, the failed variant's id
    for a fix. ``number`` tells apart the calls of one subject (the kernels of one idea), from 0.
    """

    problem: str
    round: int
    purpose: Purpose
    subject: str
    number: int = 0


def call_name(site: CallSite) -> str:
    """A call's name, for a person and as a file name: ``softmax.r2.kernel.i7.0``."""
    return ".".join((site.problem, f"r{site.round}", site.purpose, site.subject or "start", str(site.number)))


class Prompt(Struct, frozen=True, omit_defaults=True):
    """``purpose`` "ideas" wants structured output, the others one fenced block of code.

    ``schema``: the JSON schema that a structured reply must follow (OpenAI's strict subset: every object closed, every
    property required); None for a reply in free text.
    """

    purpose: Purpose
    system: str
    user: str
    schema: dict[str, Any] | None = None

    def encode(self) -> str:
        """The JSON under whose digest the session keeps this prompt. Equal prompts give equal texts."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> Prompt:
        """Raises ``msgspec.ValidationError``."""
        return msgspec.json.decode(text, type=Prompt)


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens as billed. ``cached`` and ``cache_written`` are parts of ``input``, ``reasoning`` (thoughts) of
    ``output``."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    cache_written: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output


class Reply(Struct, frozen=True):
    """``model``: the one that answered, as the server names it. ``usage`` is None where the server did not say.
    ``tier``: the service tier that the server says it used, "" where it says nothing."""

    text: str
    model: str
    usage: Usage | None
    finish: Finish = "stop"
    tier: str = ""


class CallFailed(Exception):
    """One attempt failed. ``retry_after_s`` is the server's own wish.

    ``usage``: what was billed nevertheless; ``Usage()`` where the server refused before any work, None where nobody
    knows (a connection that broke in mid-reply).
    """

    def __init__(
        self, kind: FailureKind, message: str, retry_after_s: float | None = None, usage: Usage | None = None
    ) -> None:
        super().__init__(message.encode(errors="replace").decode())  # a server's words may be no text at all
        self.kind, self.retry_after_s, self.usage = kind, retry_after_s, usage


class ModelClient(Protocol):
    """One model of one provider. ``model``: as asked for; ``limit``: the most output tokens of a call."""

    provider: str
    model: str
    limit: int

    async def complete(self, prompt: Prompt, on_text: Callable[[str], None]) -> Reply:
        """One attempt. ``on_text`` is given the text so far while it streams. Raises :class:`CallFailed`."""
        ...

    async def close(self) -> None:
        """Release connections. Idempotent."""
        ...
