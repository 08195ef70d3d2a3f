"""A person's wishes: written by a monitor or the command line, carried out by the engine, which records what came of
them as an event (``engine.events.CommandHandled``).

Small frozen structs, told apart by their ``kind`` tag, stored as JSON rows of the session file.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from engine.problem.spec import Form


class Command(Struct, frozen=True, tag_field="kind", kw_only=True, omit_defaults=True):
    """Base of all commands."""


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
    """Stop now (work in flight is cancelled), after the running rounds, or once nothing is left to do but to wait for
    replies that a person writes."""

    after_round: bool = False
    when_idle: bool = False


class SeedIdea(Command, tag="seed_idea"):
    """An idea in prose, or ``catalogue``: the name of a playbook move. ``parent``: a variant, or None for the best."""

    problem: str
    text: str
    category: str = "other"
    catalogue: str | None = None
    parent: str | None = None


class SeedKernel(Command, tag="seed_kernel"):
    """A kernel by hand. ``source`` is the text itself. ``parent``: the variant it was edited from, if any.

    ``idea``: one of the session, for which it is written, such as one that waits for an author; None makes a new one.
    """

    problem: str
    form: Form
    source: str
    text: str = "seeded by hand"
    parent: str | None = None
    idea: str | None = None


class Retry(Command, tag="retry"):
    """Judge a variant again (also: time it again)."""

    variant: str


class ChangeBudget(Command, tag="change_budget"):
    minutes: float | None = None
    rounds: int | None = None
    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None


class ChangeShare(Command, tag="change_share"):
    """What one model may spend, or each problem alone where ``model`` is ""."""

    model: str = ""
    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None


AnyCommand = (
    Prune | Restore | Pin | Unpin | Pause | Resume | Stop | SeedIdea | SeedKernel | Retry | ChangeBudget | ChangeShare
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyCommand)


def encode_command(command: Command) -> bytes:
    return _encoder.encode(command)


def decode_command(text: bytes | str) -> AnyCommand:
    """Raises ``msgspec.ValidationError`` for a row that is no known command."""
    return _decoder.decode(text)
