"""One row of the tree."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["problem", "round", "idea", "variant"]


class Row(NamedTuple):
    """``id`` is the node's. ``folded`` is None where there is nothing to fold. ``match`` is False for rows that only
    lead to a match of the filter."""

    kind: Kind
    id: str
    depth: int
    folded: bool | None = None
    match: bool = True
