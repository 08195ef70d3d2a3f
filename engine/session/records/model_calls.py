"""Records of language model calls: purpose, outcome and token usage."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Purpose = Literal["ideas", "kernel", "fix"]


Finish = Literal["stop", "length", "refusal"]
"""End of a reply: complete, cut off at the output limit, or refused by the model or its safety filter."""


FailureKind = Literal[
    "rate_limit",
    "quota",
    "key",
    "unknown_model",
    "no_program",
    "bad_request",
    "server",
    "connection",
    "timeout",
    "broken_reply",
    "cut_short",
    "program",
    "cancelled",
]
"""``broken_reply``: status 200 with an invalid body (HTML, malformed JSON). ``cut_short``: the stream ended without its
terminal event. ``program``: a program ended with an error. ``no_program``: the program does not exist. ``cancelled``:
the search canceled the call. The caller does not retry a call that fails with ``key``, ``quota``,
``unknown_model``, ``no_program`` or ``bad_request``."""


_FAILURES: dict[str, str] = {
    "rate_limit": "too many requests",
    "quota": "no quota left",
    "key": "key rejected",
    "unknown_model": "no such model",
    "no_program": "program not found",
    "bad_request": "request rejected",
    "server": "server error",
    "connection": "no connection",
    "timeout": "timed out",
    "broken_reply": "broken reply",
    "cut_short": "reply cut short",
    "program": "program failed",
    "cancelled": "call canceled",
}


def failure_words(kind: str) -> str:
    """Format a kind of failure for display. The kind may come from a later version."""
    return _FAILURES.get(kind, kind.replace("_", " "))


HOPELESS: frozenset[str] = frozenset({"key", "quota", "unknown_model", "no_program"})
"""Failures that affect every call to the model. After such a failure, this engine does not call the model again."""


class CallSite(Struct, frozen=True):
    """The purpose of a call. Calls with equal sites make the same request, so the engine reuses the recorded reply
    after a resume.

    ``subject``: the parent's variant id for ideas ("" in round 0), the idea's id for a kernel, or the failed variant's
    id for a repair. ``number`` counts calls with the same subject, from 0.
    """

    problem: str
    round: int
    purpose: Purpose
    subject: str
    number: int = 0


def call_name(site: CallSite) -> str:
    """Return a call's name for display and for file names: ``softmax.r2.kernel.i7.0``."""
    return ".".join((site.problem, f"r{site.round}", site.purpose, site.subject or "start", str(site.number)))


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """Billed tokens. ``input`` includes ``cached`` and ``cache_written``; ``output`` includes ``reasoning``."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    cache_written: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output
