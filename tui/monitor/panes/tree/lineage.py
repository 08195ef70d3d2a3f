"""The tree's rows by lineage: each kernel under its parent, followed by the ideas without a kernel.

A kernel may have thousands of descendants. ``put_in`` inserts a new kernel without rebuilding all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.session.records import events as ev
from engine.session.state.nodes import IdeaState, VariantState
from engine.session.state.session_state import SessionState
from tui.view.row import Row

Order = Callable[[list[VariantState]], list[VariantState]]


def lineage_rows(
    state: SessionState,
    problem: str,
    folds: Mapping[str, bool],
    order: Order,
    matches: Callable[[VariantState | IdeaState], bool] | None,
) -> list[Row]:
    """Return all rows under ``problem``, depth first.

    ``order`` sorts the kernels under one node. The filter ``matches``, if given, also unfolds everything. The function
    does not recurse, since a lineage may be deeper than Python's stack.
    """
    rows: list[Row] = []
    waiting: list[tuple[VariantState | IdeaState, int]] = []

    def push(variants: list[VariantState], ideas: list[IdeaState], depth: int) -> None:
        waiting.extend((idea, depth) for idea in reversed(ideas))
        waiting.extend((variant, depth) for variant in reversed(order(variants)))

    variants = state.variants
    push(first_kernels(state, problem), _without_kernel(state, problem), 1)
    while waiting:
        node, depth = waiting.pop()
        match = matches is None or matches(node)
        if isinstance(node, IdeaState):
            rows.append(Row("idea", node.id, depth, None, match))
            continue
        below = [variants[name] for name in state.derived.get(node.id, ())]
        ideas = _without_kernel(state, node.id)
        folded = folds.get(node.id, False) and matches is None
        rows.append(Row("variant", node.id, depth, folded if below or ideas else None, match))
        if not folded:
            push(below, ideas, depth + 1)
    return rows if matches is None else _leading_to_matches(rows)


def first_kernels(state: SessionState, problem: str) -> list[VariantState]:
    """Return the problem's kernels that have no parent."""
    return [one for one in state.variants_of(problem) if one.parent is None or one.parent not in state.variants]


def put_in(
    rows: list[Row], state: SessionState, folds: Mapping[str, bool], event: ev.IdeaProposed | ev.VariantWritten
) -> None:
    """Insert the event's new row into ``rows``, which must be unfiltered and in the order of creation.

    ``state`` may already include later events.
    """
    ids = [row.id for row in rows]
    idea = state.ideas.get(event.idea)
    if isinstance(event, ev.IdeaProposed):
        known = event.parent is None or event.parent in state.variants
        if idea is not None and not idea.variants and known:
            _add(rows, ids, state, folds, Row("idea", event.idea, 1), event.parent)
        return
    if event.idea in ids:  # The kernel's row replaces the idea's row.
        place = ids.index(event.idea)
        del rows[place], ids[place]
    if idea is not None and idea.parent in ids:
        above = ids.index(idea.parent)
        rows[above] = rows[above]._replace(folded=_fold(state, folds, idea.parent))
    _add(rows, ids, state, folds, Row("variant", event.variant, 1, _fold(state, folds, event.variant)), event.parent)


def _add(
    rows: list[Row], ids: list[str], state: SessionState, folds: Mapping[str, bool], row: Row, parent: str | None
) -> None:
    """Insert ``row`` after its siblings, unless the row exists or a fold hides it. ``ids`` are the ids of ``rows``."""
    if row.id in ids:
        return
    depth = 0
    end = len(rows)
    if parent is not None and parent in state.variants:
        if parent not in ids:  # A fold above hides the parent.
            return
        place = ids.index(parent)
        above = rows[place] = rows[place]._replace(folded=_fold(state, folds, parent))
        if above.folded:
            return
        depth = above.depth
        end = next((at for at in range(place + 1, len(rows)) if rows[at].depth <= depth), len(rows))
    if row.kind == "variant":  # Ideas without a kernel come after all kernels.
        while end > 0 and rows[end - 1].kind == "idea" and rows[end - 1].depth == depth + 1:
            end -= 1
    rows.insert(end, row._replace(depth=depth + 1))


def _fold(state: SessionState, folds: Mapping[str, bool], variant: str) -> bool | None:
    if state.derived.get(variant) or _without_kernel(state, variant):
        return folds.get(variant, False)
    return None


def _without_kernel(state: SessionState, node: str) -> list[IdeaState]:
    """Return the ideas directly under ``node`` (a problem or a kernel) that have no kernel yet."""
    ideas = state.ideas
    found = (ideas.get(name) for name in state.below.get(node, ()))
    return [idea for idea in found if idea is not None and not idea.variants]


def _leading_to_matches(rows: list[Row]) -> list[Row]:
    """Return the matching rows and their ancestors."""
    kept: list[Row] = []
    needed = -1
    for row in reversed(rows):
        if row.match or row.depth < needed:
            kept.append(row)
            needed = row.depth
    return kept[::-1]
