"""What proposers and the selection are told: the state of one problem in the structs of their protocols."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from engine.events import BY_HAND, DeviceFact
from engine.models.protocol import CallSite
from engine.proposers.protocol import BankKernel, Board, Demands, IdeaDraft, Kernel, Task, TriedIdea
from engine.selection import Candidate
from engine.state import IdeaState, ProblemState, RoundState, SessionState, VariantState
from engine.verdict import Verdict

PATIENCE = 3
"""Rounds in which the same answer may be missing before it is given up."""
SEEDED = "seeded"
"""Key in an idea's ``data``: a person asked for it; it is not part of what a round owes its parents."""


class Texts(Protocol):
    """Sources by digest: the engine's :class:`~engine.search.sources.Sources`, or a session's reader."""

    def text(self, digest: str) -> str:
        """Raises SessionError."""
        ...


def task_of(state: SessionState, problem: ProblemState, device: DeviceFact, demands: Demands) -> Task:
    return Task(
        problem=problem.spec,
        header=problem.header,
        form=problem.form,
        device=state.devices.get(device.id, device),
        floor_ms=problem.floor_ms,
        eager_ms=_baseline_ms(problem, "eager"),
        compile_ms=_baseline_ms(problem, "compile"),
        demands=demands,
    )


def _baseline_ms(problem: ProblemState, which: str) -> float | None:
    baseline = problem.baselines.get(which)
    return baseline.timing.median_ms if baseline is not None and baseline.timing is not None else None


def kernel_of(state: SessionState, variant: VariantState, texts: Texts) -> Kernel:
    """A judged variant with its source."""
    assert variant.verdict is not None
    return Kernel(
        variant.id,
        texts.text(variant.source),
        variant.form,
        variant.verdict,
        variant.proposer,
        variant.data,
        state.ideas[variant.idea].text,
    )


def board_of(state: SessionState, problem: ProblemState, round_number: int, parent: str | None, texts: Texts) -> Board:
    """How the problem's search stands, for a question about ``parent`` in round ``round_number``."""
    return Board(
        round=round_number,
        tried=tried_ideas(state, problem.id),
        kernels=siblings_of(state, problem.id, texts),
        bank=bank_of(state, problem, texts),
        lineage=tuple(state.ancestors(parent)) if parent is not None else (),
    )


def siblings_of(state: SessionState, problem: str, texts: Texts) -> tuple[Kernel, ...]:
    """The problem's kernels judged so far, oldest first. Pruned and cancelled ones are left out."""
    return tuple(
        kernel_of(state, variant, texts)
        for variant in state.variants_of(problem)
        if variant.was_judged and not state.is_pruned(variant.id)
    )


def bank_of(state: SessionState, problem: ProblemState, texts: Texts) -> tuple[BankKernel, ...]:
    """The best kernel of every other problem of the same form that beats eager, the most related problem first.

    Related is who shares operators of the traced reference.
    """
    found: list[tuple[int, float, BankKernel]] = []
    own = _operators(problem)
    for other in state.problems.values():
        best = state.variants.get(other.best) if other.best is not None else None
        if other.id == problem.id or other.form != problem.form or best is None or (best.speedup or 0.0) <= 1.0:
            continue
        factor = best.speedup or 0.0
        idea = state.ideas[best.idea].text
        kernel = BankKernel(other.id, best.id, best.form, texts.text(best.source), factor, idea)
        found.append((len(own & _operators(other)), factor, kernel))
    return tuple(kernel for *_, kernel in sorted(found, key=lambda one: one[:2], reverse=True))


def _operators(problem: ProblemState) -> set[str]:
    return {node.target for node in problem.spec.graph or () if node.op == "call"}


def draft_of(idea: IdeaState) -> IdeaDraft:
    data = {key: value for key, value in idea.data.items() if key != SEEDED}
    return IdeaDraft(idea.category, idea.text, data, idea.id)


def tried_ideas(state: SessionState, problem: str) -> tuple[TriedIdea, ...]:
    """Every idea of the problem with the best factor it reached, oldest first."""
    return tuple(_tried(state, idea) for idea in state.ideas.values() if idea.problem == problem)


def _tried(state: SessionState, idea: IdeaState) -> TriedIdea:
    variants = [state.variants[name] for name in idea.variants]
    speedup = max((variant.speedup for variant in variants if variant.speedup is not None), default=None)
    parent = state.variants.get(idea.parent) if idea.parent is not None else None
    failures: Counter[str] = Counter()
    if speedup is None:
        for variant in variants:
            if variant.verdict is not None and variant.verdict.same_code_as is not None:
                failures[f"same machine code as {variant.verdict.same_code_as}"] += 1
            elif variant.verdict is not None and not variant.verdict.correct:
                reason = variant.verdict.reason.strip().splitlines() or [""]
                failures[f"{variant.verdict.status.replace('_', ' ')}: {reason[0]}".rstrip(": ")] += 1
    return TriedIdea(
        idea.id,
        idea.parent,
        idea.category,
        idea.text,
        speedup,
        draft_of(idea).data,
        parent.speedup if parent is not None else None,
        failures.most_common(1)[0][0] if failures else "",
    )


def candidates_of(state: SessionState, problem: ProblemState) -> list[Candidate]:
    """The problem's correct, unpruned kernels, as selection sees them.

    Of a pinned branch the fastest kernel counts as pinned: it is the branch that is carried, not each of its kernels.
    """
    leaders = state.leaders(problem.id)
    heat = {standing.variant: standing for standing in problem.standings}
    pinned = {
        next((leader.id for leader in leaders if node in state.lineage(leader.id)), None) for node in state.pinned
    }
    dry = _exhausted(state, problem)
    return [
        Candidate(
            variant=leader.id,
            idea=leader.idea,
            round=leader.round,
            ms=leader.kernel_ms or 0.0,
            speedup=leader.speedup or 0.0,
            category=state.ideas[leader.idea].category,
            lineage_categories=frozenset(
                state.ideas[node].category for node in state.lineage(leader.id) if node in state.ideas
            ),
            speedup_low=leader.verdict.speedup_low if leader.verdict is not None else None,
            speedup_high=leader.verdict.speedup_high if leader.verdict is not None else None,
            heat_ratio=heat[leader.id].ratio if leader.id in heat else None,
            heat_tied=leader.id in heat and heat[leader.id].tied,
            pinned=leader.id in pinned,
            exhausted=leader.id in dry,
        )
        for leader in leaders
    ]


def parents_of(state: SessionState, round_: RoundState, places: int) -> list[str | None]:
    """The kernels that ``round_`` works on, None for the reference alone.

    Beside those it began with: a kernel seeded by hand during the round that stands among the ``places`` fastest, or
    is pinned. A round is a barrier for selection only.
    """
    parents: list[str | None] = [one.variant for one in round_.parents if not state.is_pruned(one.variant)]
    if not round_.parents:
        parents = [None]
    leaders = state.leaders(round_.problem)
    for rank, leader in enumerate(leaders):
        idea = state.ideas[leader.idea]
        seeded_now = leader.round == round_.number and idea.proposer == BY_HAND and idea.id in round_.ideas
        if seeded_now and leader.id not in parents and (rank < places or state.is_pinned(leader.id)):
            parents.append(leader.id)
    return parents


def share_out(total: int, parents: Sequence[str | None], weights: Sequence[float]) -> dict[tuple[str | None, int], int]:
    """How many of a round's ``total`` ideas each parent asks of each proposer (by place): at least one a parent.

    Earlier parents get what is left over; over all parents, proposers get their share by weight.
    """
    counts: dict[tuple[str | None, int], int] = {}
    given = [0.0] * len(weights)
    for place, parent in enumerate(parents):
        wanted = max(1, total // len(parents) + (1 if place < total % len(parents) else 0))
        for _ in range(wanted):
            proposer = min(range(len(weights)), key=lambda index: (given[index] + 1) / weights[index])
            given[proposer] += 1
            counts[parent, proposer] = counts.get((parent, proposer), 0) + 1
    return counts


def own_ideas(state: SessionState, names: Iterable[str]) -> list[IdeaState]:
    """Those of ``names`` that a proposer had by itself, not a person."""
    ideas = (state.ideas[name] for name in names)
    return [idea for idea in ideas if idea.proposer != BY_HAND and not idea.data.get(SEEDED)]


_JUDGED_BY_CODE = frozenset({"correct", "wrong", "out_of_bounds"})
"""Statuses that follow from the machine code; others may be the machine's mood."""


def same_code(judged: Iterable[tuple[str, Verdict]], code: str) -> Verdict | None:
    """The verdict for a kernel with machine code that another one had: the same, without its times.

    ``judged``: variants of its problem and their verdicts.
    """
    for variant, verdict in judged:
        if verdict.build is None or verdict.build.code != code or verdict.same_code_as is not None:
            continue
        if verdict.status in _JUDGED_BY_CODE:
            reason = f"same machine code as {variant}" + (f": {verdict.reason}" if verdict.reason else "")
            return replace(verdict.without_times(), reason=reason, same_code_as=variant)
    return None


def answering_model(state: SessionState, site: CallSite) -> str | None:
    """The model that was asked at ``site`` already, whether it has answered or not."""
    found = [call.model for call in state.spending.calls.values() if call.site == site]
    return found[-1] if found else None


def _exhausted(state: SessionState, problem: ProblemState) -> set[str]:
    """Kernels that were parents of a finished round in which no proposer had an idea for them.

    One that had no answer is another matter: it will be asked again (:class:`~engine.events.AnswerMissing`).
    """
    dry: set[str] = set()
    for round_ in problem.rounds:
        if round_.finished_at is not None:
            served = {idea.parent for idea in own_ideas(state, round_.ideas)}
            for one in round_.parents:
                missing = problem.missing.get(("ideas", one.variant), {})
                if one.variant in served or (round_.number in missing and len(missing) < PATIENCE):
                    dry.discard(one.variant)
                else:
                    dry.add(one.variant)
    return dry
