"""Requests from a person to a running engine.

A monitor or the command line writes requests to the session file. The engine carries out each request and records the
outcome as an event (``engine.session.records.events.CommandHandled``). Requests are small frozen structs with a
``kind`` tag, stored as JSON rows.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from engine.problem.spec import Language


class Command(Struct, frozen=True, tag_field="kind", kw_only=True, omit_defaults=True):
    """Base class for all requests."""


class Prune(Command, tag="prune"):
    node: str


class Restore(Command, tag="restore"):
    node: str


class Pin(Command, tag="pin"):
    node: str


class Unpin(Command, tag="unpin"):
    node: str


class Pause(Command, tag="pause"):
    pass


class Resume(Command, tag="resume"):
    pass


class Stop(Command, tag="stop"):
    """Stop the search immediately, after the running rounds, or when it is waiting only for a person's replies. An
    immediate stop cancels work in flight.
    """

    after_round: bool = False
    when_idle: bool = False


class CancelStop(Command, tag="cancel_stop"):
    """Cancel a planned stop after the running rounds."""


class SeedIdea(Command, tag="seed_idea"):
    """Add an idea: free text, or the transformation that ``catalogue`` names. ``parent``: a variant, or None for the
    best kernel.
    """

    problem: str
    text: str
    category: str = "other"
    catalogue: str | None = None
    parent: str | None = None


class SeedKernel(Command, tag="seed_kernel"):
    """Add a kernel written by hand. ``source``: the kernel's text. ``parent``: the variant that the person edited, if
    any. ``idea``: the idea that the kernel implements. None creates a new idea, unless the newest round has an idea
    seeded from the same ``file`` with the same text and parent. The kernel then belongs to the existing idea. ``file``:
    the absolute path of the kernel's file, or "".
    """

    problem: str
    language: Language = field(name="form")
    source: str
    text: str = "seeded by hand"
    parent: str | None = None
    idea: str | None = None
    file: str = ""


class Retry(Command, tag="retry"):
    """Judge and time a variant again."""

    variant: str


class ChangeBudget(Command, tag="change_budget"):
    minutes: float | None = None
    rounds: int | None = None
    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None


class ChangeShare(Command, tag="change_share"):
    """Change the spending limits for one model, or for each problem if ``model`` is ""."""

    model: str = ""
    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None


AnyRequest = (
    Prune
    | Restore
    | Pin
    | Unpin
    | Pause
    | Resume
    | Stop
    | CancelStop
    | SeedIdea
    | SeedKernel
    | Retry
    | ChangeBudget
    | ChangeShare
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyRequest)


def encode_command(command: Command) -> bytes:
    return _encoder.encode(command)


def decode_command(text: bytes | str) -> AnyRequest:
    """Decode a row's JSON to a request. Raises ``msgspec.ValidationError`` for an unknown request."""
    return _decoder.decode(text)
