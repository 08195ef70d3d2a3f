"""Strictly decode the events in a model's stream, but only the fields that the client needs. Decoding to the SDKs'
classes takes ten times as long. Decoding must be fast, because a search streams from many models while the judge times
kernels on the same machine.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from engine.proposers.llm.model_protocol import CallFailed

Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
"""A token count. The upper bound exceeds the token count of any real call."""
_T = TypeVar("_T")


def read(event: object, kind: type[_T]) -> _T:
    """Decode one event in a model's stream. Raises :class:`CallFailed` if the event violates the protocol."""
    try:
        return msgspec.convert(event, kind)
    except msgspec.ValidationError as error:
        raise CallFailed("broken_reply", f"the stream contains an invalid event: {error}") from None
