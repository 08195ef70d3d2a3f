"""That nothing descends from itself, so that who follows a lineage comes to its end. Asked by the fold. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.state import SessionState


Above = tuple[str | None, ...]


def out_of_order(state: SessionState, node: str, above: Above, known: Above | None) -> None:
    """``node`` is about to be put right under ``above``, but is there already, or something hangs under it, or one of
    those above is not there. Never so in what an engine records, where a new node is put under old ones: no loop is
    closed by that. Raises ValueError if one would be, or if the node was put elsewhere before (``known``).
    """
    if known is not None and known != above:
        raise ValueError(f"{node} is there already, elsewhere")
    waiting, seen = [one for one in above if one is not None], set[str]()
    while waiting:
        here = waiting.pop()
        if here == node:
            raise ValueError(f"{node} would descend from itself")
        if here in seen:
            continue
        seen.add(here)
        if (variant := state.variants.get(here)) is not None:
            waiting += [one for one in (variant.idea, variant.parent) if one is not None]
        if (idea := state.ideas.get(here)) is not None and idea.parent is not None:
            waiting.append(idea.parent)
    state.awaited.update(one for one in seen if one not in state.variants and one not in state.ideas)
