"""Check that no node descends from itself, so that every lineage is finite. All functions are pure."""

from __future__ import annotations

from engine.session.state.session_data import SessionData

Above = tuple[str | None, ...]


def out_of_order(state: SessionData, node: str, above: Above, known: Above | None) -> None:
    """Check a node that arrives out of order, before the state places it under ``above``. A node is out of order if it
    already exists, already has nodes below it, or belongs under a missing node. Engines never record nodes out of
    order, because they place new nodes under existing nodes.

    Raises:
        ValueError: The node would create a cycle, or already exists elsewhere (``known``).
    """
    if known is not None and known != above:
        raise ValueError(f"{node} already exists under another parent")
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
