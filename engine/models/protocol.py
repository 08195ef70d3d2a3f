"""What the search asks of a language model, whoever serves it: a prompt in, a text and its usage out.

A client makes exactly one attempt per call; retries, spending and recording are ``engine.models.caller``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

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
]
"""``broken_reply``: a status of 200 around something that is no reply (HTML, malformed JSON). ``cut_short``: the stream
ended without its terminal event. ``key``, ``quota``, ``unknown_model`` and ``bad_request`` are not worth a retry."""


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


class Prompt(Struct, frozen=True):
    """``purpose`` "ideas" wants structured output, the others one fenced block of code."""

    purpose: Purpose
    system: str
    user: str


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens as billed. ``cached`` is part of ``input``; ``reasoning`` (thoughts) is part of ``output``."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0


class Reply(Struct, frozen=True):
    """``model``: the one that answered, as the server names it. ``usage`` is None where the server did not say."""

    text: str
    model: str
    usage: Usage | None
    finish: Finish = "stop"


class CallFailed(Exception):
    """One attempt failed. ``retry_after_s`` is the server's own wish; ``usage`` what was billed nevertheless."""

    def __init__(
        self, kind: FailureKind, message: str, retry_after_s: float | None = None, usage: Usage | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.retry_after_s, self.usage = kind, retry_after_s, usage


class ModelClient(Protocol):
    """One model of one provider."""

    provider: str
    model: str

    async def complete(self, prompt: Prompt, on_text: Callable[[str], None]) -> Reply:
        """One attempt. ``on_text`` is given the text so far while it streams. Raises :class:`CallFailed`."""
        ...

    async def close(self) -> None:
        """Release connections. Idempotent."""
        ...
