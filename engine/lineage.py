"""That nothing descends from itself, so that who follows a lineage comes to its end. Asked by the fold. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.state import SessionState


Above = tuple[str | None, ...]


def refuse_loop(state: SessionState, node: str, above: Above, known: Above | None) -> None:
    """``node`` is about to be put right under ``above``. Raises ValueError if it stands above one of them already, or
    was put elsewhere before: ``known``, None for a new one.

    The fold asks only where anything is known of ``node`` yet, which is never so in what an engine records: a node that
    nothing hangs under closes no loop.
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
