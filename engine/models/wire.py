"""How the events of a model's stream are read: the few fields that matter, strictly.

The SDKs can give every event as one of their own classes; that costs ten times what reading these few fields does, and
a search streams from many models while kernels are timed on the same machine.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from engine.models.protocol import CallFailed

Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
"""Of tokens; no call has so many."""
_T = TypeVar("_T")


def read(event: object, kind: type[_T]) -> _T:
    """An event of a stream. Raises :class:`CallFailed` for one that the protocol does not have."""
    try:
        return msgspec.convert(event, kind)
    except msgspec.ValidationError as error:
        raise CallFailed("broken_reply", f"an event of the stream is none of the protocol's: {error}") from None
