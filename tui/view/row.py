"""A row of the tree."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["problem", "round", "idea", "variant"]


class Row(NamedTuple):
    """A row of the tree, for the node ``id``.

    ``folded`` is None if the node has nothing to fold. ``match`` is False for a row that contains a match but does
    not match the filter itself.
    """

    kind: Kind
    id: str
    depth: int
    folded: bool | None = None
    match: bool = True
