"""A row of the tree."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["problem", "round", "idea", "variant"]


class Row(NamedTuple):
    """A row of the tree, for the node ``id``.

    ``folded`` is None if the node has nothing to fold. ``match`` is False for rows that do not match the filter
    themselves, but contain a match.
    """

    kind: Kind
    id: str
    depth: int
    folded: bool | None = None
    match: bool = True
