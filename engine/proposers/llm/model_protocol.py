"""The interface to all providers' language models: send a prompt, and get a reply and its token usage.

A client makes exactly one attempt per call. ``calls.retrying_caller`` handles retries, spending and recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from engine.session.records.model_calls import FailureKind, Finish, Purpose, Usage


class Prompt(Struct, frozen=True, omit_defaults=True):
    """A prompt to a model. Prompts for ideas request structured output. All other prompts request one fenced code
    block.

    ``schema`` is the JSON schema of a structured reply, or None for free text. The schema uses OpenAI's strict subset
    (every object closed, every property required).
    """

    purpose: Purpose
    system: str
    user: str
    schema: dict[str, Any] | None = None

    def encode(self) -> str:
        """Encode the prompt as JSON. The session stores the prompt under the digest of this JSON. Equal prompts have
        equal encodings.
        """
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> Prompt:
        """Decode a prompt. Raises ``msgspec.ValidationError``."""
        return msgspec.json.decode(text, type=Prompt)


class Reply(Struct, frozen=True):
    """A model's reply. ``model`` is the server's name for the model. ``usage`` is None if the server did not report the
    usage. ``tier`` is the service tier that the server reported, or "". ``dollars`` is the cost that the provider
    itself reported, or None if the cost follows from the usage.
    """

    text: str
    model: str
    usage: Usage | None
    finish: Finish = "stop"
    tier: str = ""
    dollars: float | None = None


class CallFailed(Exception):
    """One attempt failed. ``retry_after_s`` is the delay that the server requested.

    ``usage`` is the number of billed tokens: ``Usage()`` if the server rejected the request, or None if unconfirmed,
    for example after a broken connection. ``dollars`` is the cost that the provider itself reported, or None if the
    cost follows from the usage.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        retry_after_s: float | None = None,
        usage: Usage | None = None,
        dollars: float | None = None,
    ) -> None:
        super().__init__(message.encode(errors="replace").decode())  # A server's message may contain invalid Unicode.
        self.kind, self.retry_after_s, self.usage, self.dollars = kind, retry_after_s, usage, dollars


class ModelClient(Protocol):
    """The interface of a client for one model. ``model`` is the model name in requests. ``limit`` is the maximum number
    of output tokens per call.
    """

    provider: str
    model: str
    limit: int

    async def complete(self, prompt: Prompt, on_text: Callable[[str], None]) -> Reply:
        """Make one attempt. While the reply is streaming, call ``on_text`` with the text so far. Raises
        :class:`CallFailed`.
        """
        ...

    async def close(self) -> None:
        """Release connections. Idempotent."""
        ...
