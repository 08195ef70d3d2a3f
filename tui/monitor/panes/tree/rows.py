"""The tree as a flat list of rows: problems > rounds > ideas > variants, or each kernel under its parent.

The tree caches rows per round, or per problem in the lineage view. Even in a large session, the tree therefore rebuilds
only a few rows for a new kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Literal

from msgspec import Struct, field

from engine.session.records import events as ev
from engine.session.records.events import AnyEvent
from engine.session.state.comparable import comparable_speedup, figures_of
from engine.session.state.session_state import IdeaState, SessionState, VariantState
from tui.monitor.panes.tree.filters import Matcher, parse_filter
from tui.monitor.panes.tree.lineage import first_kernels, lineage_rows, put_in
from tui.text.same_code import twin_of
from tui.view.row import Row

Mode = Literal["round", "lineage"]
SortKey = Literal["written", "speedup", "time", "age"]
SORT_KEYS: tuple[SortKey, ...] = ("written", "speedup", "time", "age")

NEAR = 64
"""Number of rows on either side of a node's old position that ``find`` searches first."""
_RESORTING = (
    *(ev.VerdictGiven, ev.RunoffFinished, ev.NodePruned, ev.NodeRestored),
    *(ev.NodePinned, ev.NodeUnpinned, ev.EngineStarted, ev.EngineStopped),
)
"""Events that may change which rows match a filter, or their order."""


class View(Struct):
    """The user's view of the tree: mode, order, filter and folds."""

    mode: Mode = "round"
    sort: SortKey = "written"
    reverse: bool = False
    filter: str = ""
    folds: dict[str, bool] = field(default_factory=dict)
    """Nodes that the user folded (True) or unfolded (False)."""


class TreeRows:
    """The rows of a session's tree. Call ``note`` for every event, after the state has applied it."""

    def __init__(self, state: SessionState, view: View | None = None) -> None:
        self.state = state
        self.view = view or View()
        self._blocks: dict[str, list[Row]] = {}
        self._rows: list[Row] | None = None
        self._matcher: Matcher | None = None

    @property
    def rows(self) -> list[Row]:
        if self._rows is None:
            self._rows = rows = []
            for problem in self.state.problems:
                for block in self._problem_blocks(problem):
                    rows += block
        return self._rows

    def note(self, event: AnyEvent) -> None:
        """Drop the cached rows that ``event`` may have changed."""
        if self.view.mode == "lineage" and isinstance(event, ev.IdeaProposed | ev.VariantWritten):
            self._note_in_lineage(event)
        elif isinstance(event, ev.IdeaProposed | ev.VariantWritten | ev.RoundStarted):
            self._forget(event.problem, event.round)
            if isinstance(event, ev.RoundStarted):
                self._forget(event.problem, event.round - 1)
        elif isinstance(event, ev.ProblemAdded):
            self._rows = None
        elif isinstance(event, _RESORTING) and (self.view.filter or self.view.sort != "written"):
            self.forget_all()
        elif isinstance(event, ev.VariantStage) and self._matcher is not None and event.variant in self.state.variants:
            variant = self.state.variants[event.variant]
            self._forget(variant.problem, variant.round)

    def _note_in_lineage(self, event: ev.IdeaProposed | ev.VariantWritten) -> None:
        view = self.view
        if (block := self._blocks.get(event.problem)) is not None:
            if view.sort == "written" and not view.reverse and self._matcher is None:
                put_in(block, self.state, view.folds, event)
            else:
                del self._blocks[event.problem]
        self._rows = None

    def forget_all(self) -> None:
        self._blocks.clear()
        self._rows = None

    def set_filter(self, text: str) -> None:
        self.view.filter = text
        self._matcher = parse_filter(text) if text.strip() else None
        self.forget_all()

    def why(self, row: Row, shown: str) -> list[str]:
        """Return what the filter matches in the node of ``row``, but not in ``shown``, the row's text."""
        node = self.state.variants.get(row.id) or self.state.ideas.get(row.id)
        if self._matcher is None or node is None:
            return []
        return self._matcher.why(self.state, node, shown, below_idea=self.view.mode == "round")

    def set_mode(self, mode: Mode) -> None:
        self.view.mode = mode
        self.forget_all()

    def set_sort(self, sort: SortKey, reverse: bool) -> None:
        self.view.sort, self.view.reverse = sort, reverse
        self.forget_all()

    def is_folded(self, node: str) -> bool:
        """Return whether the node is folded. If the user has not chosen, only older rounds are folded."""
        if (chosen := self.view.folds.get(node)) is not None:
            return chosen
        problem, slash, number = node.rpartition("/r")
        if not slash or (found := self.state.problems.get(problem)) is None or not found.rounds:
            return False
        return found.rounds[-1].number != int(number)

    def fold(self, node: str, folded: bool) -> None:
        self.view.folds[node] = folded
        self.forget_all()

    def fold_all(self, folded: bool) -> None:
        """Fold every round (in the lineage view, every first kernel), or unfold everything."""
        self.view.folds.clear()
        for problem in self.state.problems.values():
            for round_ in problem.rounds:
                self.view.folds[round_.id] = folded
            if self.view.mode == "lineage" and folded:
                self.view.folds.update((first.id, True) for first in first_kernels(self.state, problem.id))
        self.forget_all()

    def toggle_all(self) -> None:
        """Fold every round (in the lineage view, every first kernel) or, if all are folded, unfold everything."""
        problems = self.state.problems.values()
        if self.view.mode == "lineage":
            nodes = [first.id for problem in problems for first in first_kernels(self.state, problem.id)]
        else:
            nodes = [round_.id for problem in problems for round_ in problem.rounds]
        self.fold_all(not all(map(self.is_folded, nodes)))

    def reveal(self, node: str) -> int | None:
        """Unfold all ancestors of ``node``. Return the node's index in ``rows``, or None if the node is hidden or
        unknown.
        """
        for above in self.above(node):
            if self.is_folded(above):
                self.view.folds[above] = False
                self.forget_all()
        return self.find(node)

    def find(self, node: str, near: int = 0) -> int | None:
        """Return the index of ``node`` in ``rows``, or None if it is absent. The search starts around ``near``."""
        rows = self.rows
        if near < len(rows) and rows[near].id == node:
            return near
        around = range(max(0, near - NEAR), min(len(rows), near + NEAR))
        return next((place for place in chain(around, range(len(rows))) if rows[place].id == node), None)

    def parent_row(self, place: int) -> int | None:
        """Return the index of the parent row of ``rows[place]``."""
        rows = self.rows
        depth = rows[place].depth
        return next((above for above in range(place - 1, -1, -1) if rows[above].depth < depth), None)

    def _forget(self, problem: str, number: int) -> None:
        self._blocks.pop(f"{problem}/r{number}", None)
        self._blocks.pop(problem, None)
        self._rows = None

    def above(self, node: str) -> list[str]:
        """Return the ancestors of ``node``, problem first."""
        variant = self.state.variants.get(node)
        idea = self.state.ideas.get(variant.idea if variant is not None else node)
        owner = variant or idea
        if owner is None:
            problem, slash, _ = node.rpartition("/r")
            return [problem] if slash else []
        if self.view.mode == "lineage":
            start = variant.parent if variant is not None else (idea.parent if idea is not None else None)
            return [owner.problem, *(self.state.ancestors(start) if start is not None else ())]
        rounds = [owner.problem, f"{owner.problem}/r{owner.round}"]
        return [*rounds, variant.idea] if variant is not None else rounds

    def _problem_blocks(self, problem: str) -> list[list[Row]]:
        folded = self.is_folded(problem) and self._matcher is None
        head = [Row("problem", problem, 0, folded, self._matcher is None)]
        if folded:
            return [head]
        if self.view.mode == "lineage":
            blocks = [self._block(problem, lambda: self._lineage_rows(problem))]
        else:
            rounds = self.state.problems[problem].rounds
            ordered = reversed(rounds) if self.view.reverse and self.view.sort == "written" else iter(rounds)
            blocks = [
                self._block(round_.id, lambda at=round_: self._round_rows(problem, at.id, at.ideas))  # type: ignore[misc]
                for round_ in ordered
            ]
        return [head, *blocks] if self._matcher is None or any(blocks) else []

    def _block(self, key: str, build: Callable[[], list[Row]]) -> list[Row]:
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = build()
        return block

    def _round_rows(self, problem: str, round_id: str, ideas: list[str]) -> list[Row]:
        filtered = self._matcher is not None
        if self.is_folded(round_id) and not filtered:
            return [Row("round", round_id, 1, True)]
        rows = [Row("round", round_id, 1, False, not filtered)]
        for idea in self._sorted_ideas(ideas):
            variants = [self.state.variants[name] for name in idea.variants]
            shown = [variant for variant in variants if self._matches(variant)]
            if filtered and not shown and not self._matches_idea(idea):
                continue
            folded = self.is_folded(idea.id) and not filtered
            rows.append(Row("idea", idea.id, 2, folded if variants else None, self._matches_idea(idea)))
            if not folded:
                rows += [Row("variant", variant.id, 3) for variant in self._sorted(shown)]
        return rows if len(rows) > 1 or not filtered else []

    def _lineage_rows(self, problem: str) -> list[Row]:
        matches = self._matches_node if self._matcher is not None else None
        return lineage_rows(self.state, problem, self.view.folds, self._sorted, matches)

    def _matches_node(self, node: VariantState | IdeaState) -> bool:
        return self._matches_idea(node) if isinstance(node, IdeaState) else self._matches(node)

    def _matches(self, variant: VariantState) -> bool:
        return self._matcher is None or self._matcher.variant(self.state, variant)

    def _matches_idea(self, idea: IdeaState) -> bool:
        return self._matcher is None or self._matcher.idea(self.state, idea)

    def _sorted(self, variants: list[VariantState]) -> list[VariantState]:
        if self.view.sort == "written":
            return variants[::-1] if self.view.reverse else variants
        return sorted(variants, key=self._rank, reverse=self.view.reverse)

    def _sorted_ideas(self, names: Iterable[str]) -> list[IdeaState]:
        ideas = [self.state.ideas[name] for name in names]
        if self.view.sort == "written":
            return ideas[::-1] if self.view.reverse else ideas
        variants = self.state.variants
        return sorted(
            ideas,
            key=lambda idea: min((self._rank(variants[name]) for name in idea.variants), default=float("inf")),
            reverse=self.view.reverse,
        )

    def _rank(self, variant: VariantState) -> float:
        """Return the kernel's sort key: the highest speedup, the shortest time or the newest kernel comes first."""
        timed = twin_of(self.state, variant) or variant
        if self.view.sort == "speedup":
            return -comparable_speedup(self.state, timed)
        if self.view.sort == "time":
            figures = figures_of(self.state, timed)
            return figures.ms if figures is not None else float("inf")
        return -variant.written_at
