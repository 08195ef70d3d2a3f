"""Context for proposers and strategies: structs that describe a problem's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.proposers.protocol import Board, Demands, ExampleKernel, IdeaDraft, Kernel, Task, TriedIdea
from engine.search.strategies import Candidate
from engine.session.records.events import BY_HAND
from engine.session.records.model_calls import CallSite
from engine.session.records.verdict import BUSY, Verdict
from engine.session.records.verdict_text import is_uncertain
from engine.session.state.nodes import SEED_FILE, SEEDED
from engine.session.state.over_compile import over_compile
from engine.session.state.session_state import IdeaState, ProblemState, RoundState, SessionState, VariantState
from engine.session.worked_ideas import WorkedIdea, operators_of, worked_ideas

PATIENCE = 3
"""Number of rounds without an answer after which the search gives up on a request."""


class Texts(Protocol):
    """A reader of sources by digest: the engine's :class:`~engine.search.kernel_sources.Sources`, or a session's
    reader.
    """

    def text(self, digest: str) -> str:
        """Read a source. Raises SessionError."""
        ...


def task_of(state: SessionState, problem: ProblemState, device: DeviceFact, demands: Demands) -> Task:
    return Task(
        problem=problem.spec,
        header=problem.header,
        language=problem.language,
        device=state.devices.get(device.id, device),
        sol_ms=problem.sol_ms,
        eager_ms=_baseline_ms(problem, "eager"),
        compile_ms=_baseline_ms(problem, "compile"),
        demands=demands,
        languages=problem.languages,
    )


def _baseline_ms(problem: ProblemState, which: str) -> float | None:
    baseline = problem.baselines.get(which)
    return baseline.timing.median_ms if baseline is not None and baseline.timing is not None else None


def kernel_of(state: SessionState, variant: VariantState, texts: Texts) -> Kernel:
    """Convert a judged variant and its source to a ``Kernel`` for proposers."""
    assert variant.verdict is not None
    problem = state.problems[variant.problem]
    return Kernel(
        variant.id,
        texts.text(variant.source),
        variant.language,
        variant.verdict,
        variant.proposer,
        variant.data,
        state.ideas[variant.idea].text,
        variant.profile.launches if variant.profile is not None else (),
        next((one.ratio for one in problem.standings if one.variant == variant.id and one.decides), None),
        over_compile(problem, variant.verdict),
    )


def board_of(
    state: SessionState,
    problem: ProblemState,
    round_number: int,
    parent: str | None,
    texts: Texts,
    remembered: Sequence[WorkedIdea] = (),
) -> Board:
    """Describe the problem's search for a proposer that develops ``parent`` in round ``round_number``.

    ``remembered``: ideas that worked in earlier sessions.
    """
    return Board(
        round=round_number,
        tried=tried_ideas(state, problem.id),
        kernels=siblings_of(state, problem.id, texts),
        examples=examples_of(state, problem, texts),
        lineage=tuple(state.ancestors(parent)) if parent is not None else (),
        worked=(*remembered, *(idea for idea in worked_ideas(state) if idea.problem != problem.id)),
    )


def siblings_of(state: SessionState, problem: str, texts: Texts) -> tuple[Kernel, ...]:
    """The problem's judged kernels, oldest first, except pruned and canceled kernels."""
    return tuple(
        kernel_of(state, variant, texts)
        for variant in state.variants_of(problem)
        if variant.was_judged and not state.is_pruned(variant.id)
    )


def examples_of(state: SessionState, problem: ProblemState, texts: Texts) -> tuple[ExampleKernel, ...]:
    """Return other problems' best kernels that beat eager and use one of this problem's languages.

    The most closely related problems come first: their traced references share the most operators.
    """
    found: list[tuple[int, float, ExampleKernel]] = []
    own = operators_of(problem.spec)
    for other in state.problems.values():
        best = state.variants.get(other.best) if other.best is not None else None
        if other.id == problem.id or best is None or (best.speedup or 0.0) <= 1.0:
            continue
        if best.language not in problem.languages:
            continue
        speedup = best.speedup or 0.0
        idea = state.ideas[best.idea].text
        kernel = ExampleKernel(other.id, best.id, best.language, texts.text(best.source), speedup, idea)
        found.append((len(own & operators_of(other.spec)), speedup, kernel))
    return tuple(kernel for *_, kernel in sorted(found, key=lambda one: one[:2], reverse=True))


def draft_of(idea: IdeaState) -> IdeaDraft:
    data = {key: value for key, value in idea.data.items() if key not in (SEEDED, SEED_FILE)}
    return IdeaDraft(idea.category, idea.text, data, idea.id)


def tried_ideas(state: SessionState, problem: str) -> tuple[TriedIdea, ...]:
    """All ideas of the problem with their best speedup, oldest first."""
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
    """The problem's correct, unpruned kernels as input for a strategy.

    In a pinned branch, only the fastest kernel counts as pinned, because pinning selects the branch, not each kernel.
    """
    leaders = state.leaders(problem.id)
    runoff = {standing.variant: standing for standing in problem.standings if standing.decides}
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
            uncertain=is_uncertain(leader.verdict),
            busy=leader.verdict is not None and leader.verdict.others > BUSY,
            runoff_ratio=runoff[leader.id].ratio if leader.id in runoff else None,
            runoff_tied=leader.id in runoff and runoff[leader.id].tied,
            best=leader.id == problem.best,
            pinned=leader.id in pinned,
            exhausted=leader.id in dry,
        )
        for leader in leaders
    ]


def parents_of(state: SessionState, round_: RoundState, places: int) -> list[str | None]:
    """Return the parents of ``round_``. None as a parent means that proposers see only the reference.

    The parents include kernels that a person seeds during the round, if these are pinned or among the ``places``
    fastest.
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
    """Divide a round's ``total`` ideas among parents and proposers (by index), with at least one idea per parent.

    Earlier parents get the remainder. Across all parents, each proposer's share follows its weight.
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
    """Return the ideas in ``names`` that a proposer, not a person, suggested."""
    ideas = (state.ideas[name] for name in names)
    return [idea for idea in ideas if idea.proposer != BY_HAND and not idea.data.get(SEEDED)]


_JUDGED_BY_CODE = frozenset({"correct", "wrong", "out_of_bounds"})
"""Statuses that kernels with the same machine code share. Other statuses may depend on the machine's state."""


def same_code(judged: Iterable[tuple[str, Verdict]], code: str) -> Verdict | None:
    """Return the verdict, without times, of a judged kernel whose machine code has the digest ``code``. Return None if
    there is no such kernel.

    ``judged`` lists variants of the problem with their verdicts.
    """
    for variant, verdict in judged:
        if verdict.build is None or verdict.build.code != code or verdict.same_code_as is not None:
            continue
        if verdict.status in _JUDGED_BY_CODE:
            reason = f"same machine code as {variant}" + (f": {verdict.reason}" if verdict.reason else "")
            return replace(verdict.without_times(), reason=reason, same_code_as=variant)
    return None


def answering_model(state: SessionState, site: CallSite) -> str | None:
    """Return the model that received the last call at ``site``, whether or not the model answered."""
    found = [call.model for call in state.spending.calls.values() if call.site == site]
    return found[-1] if found else None


def _exhausted(state: SessionState, problem: ProblemState) -> set[str]:
    """Return kernels that were parents in a finished round but got no ideas from any proposer.

    Omit kernels whose failed request (``AnswerMissing``) the search will repeat.
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
