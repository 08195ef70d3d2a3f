"""Ideas that made a session's kernels faster, for use on other problems and in later sessions. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from engine.problem.spec import Language, ProblemSpec
from engine.session.state.session_state import IdeaState, SessionState

LEAST_GAIN = 1.05
"""Minimum speedup over the parent (for a first kernel: over eager) at which an idea counts as having worked."""


class WorkedIdea(Struct, frozen=True):
    """An idea that made a kernel faster.

    ``speedup`` is over eager. ``before`` is the parent's speedup, or None for a first kernel. ``operators`` lists the
    operators of the problem's reference. ``session`` is the session's name, or "" for the current session.
    """

    problem: str
    session: str
    language: Language
    text: str
    data: dict[str, Any]
    speedup: float
    before: float | None
    operators: frozenset[str]

    @property
    def gain(self) -> float:
        return self.speedup / (self.before or 1.0)


def operators_of(spec: ProblemSpec) -> frozenset[str]:
    """Return the operators of a problem's traced reference."""
    return frozenset(node.target for node in spec.graph or () if node.op == "call")


def worked_ideas(state: SessionState, session: str = "") -> Iterator[WorkedIdea]:
    """Yield a session's ideas that made kernels faster, oldest first."""
    operators = {problem.spec.id: operators_of(problem.spec) for problem in state.problems.values()}
    for idea in state.ideas.values():
        if idea.problem not in operators or not idea.text or state.is_pruned(idea.id):
            continue
        found = _of(state, idea)
        if found is not None and found[0] / (found[1] or 1.0) >= LEAST_GAIN:
            speedup, before, language = found
            yield WorkedIdea(
                idea.problem, session, language, idea.text, idea.data, speedup, before, operators[idea.problem]
            )


def _of(state: SessionState, idea: IdeaState) -> tuple[float, float | None, Language] | None:
    """Return the best speedup among the idea's kernels, the parent's speedup, and the best kernel's language."""
    judged = [variant for variant in map(state.variants.__getitem__, idea.variants) if variant.speedup is not None]
    parent = state.variants.get(idea.parent or "")
    if not judged or (idea.parent is not None and (parent is None or parent.speedup is None)):
        return None
    best = max(judged, key=lambda variant: variant.speedup or 0.0)
    return best.speedup or 0.0, parent.speedup if parent is not None else None, best.language
