"""Who leads: the order of a problem's kernels and the best of each round, kept as verdicts and prunes come in. Pure.

But for ``reached_in_heat``, called by ``engine/state.py`` alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import TYPE_CHECKING

from engine.nodes import ProblemState, RoundState, VariantState
from engine.verdict import Verdict

if TYPE_CHECKING:
    from engine.state import SessionState


def reached_in_heat(timed: Sequence[tuple[float, float]]) -> float:
    """The factor over eager by which a heat's winner compares with kernels that were not in it: its own or, if more,
    what the others say of it (their median). A reference that was disturbed, or was not, must put no kernel before one
    that has outrun it. ``timed``: (factor, time / the first one's) of each, the first one first; it is not empty.
    """
    return max(timed[0][0], median_low([factor * ratio for factor, ratio in timed]))


def standing_order(state: SessionState, problem: str, count: int | None) -> list[VariantState]:
    """See ``SessionState.standing_order``."""
    found = state.problems.get(problem)
    if found is None:
        return []
    best = state.variants.get(found.best) if found.best is not None else None
    order = [best] if best is not None else []
    timed = [
        (who, who.speedup, one.ratio if one.ratio > 0 else 1.0)
        for one in found.standings
        if (who := state.variants.get(one.variant)) is not None
        and who.speedup is not None
        and not state.is_pruned(who.id)
    ]
    least = timed[0][2] if timed else 1.0
    reached = reached_in_heat([(factor, ratio / least) for _, factor, ratio in timed]) if timed else 0.0
    heat = deque((who, reached * least / ratio) for who, _, ratio in timed if who is not best)
    placed = {one.id for one in (*order, *(who for who, _ in heat))}
    for leader in state.leaders(problem, count + len(placed) if count is not None else None):
        if leader.id in placed:
            continue
        while heat and heat[0][1] >= (leader.speedup or 0.0):
            order.append(heat.popleft()[0])
        order.append(leader)
    return [*order, *(who for who, _ in heat)][:count]


def round_of(state: SessionState, problem: str, number: int) -> RoundState | None:
    """The round of that number, the latest where there are several; None where there is none."""
    found = state.problems.get(problem)
    if found is None:
        return None
    for round_ in reversed(found.rounds):  # asked for three times a kernel: no generator, which costs twice this
        if round_.number == number:
            return round_
    return None


def rank(state: SessionState, variant: VariantState, verdict: Verdict) -> None:
    """Move ``variant`` from its place by its former verdict to its place by the new one."""
    if (problem := state.problems.get(variant.problem)) is None:
        return
    if variant.speedup is not None:
        place = bisect_left(problem.ranking, (-variant.speedup, variant.id))
        if place < len(problem.ranking) and problem.ranking[place][1] == variant.id:
            del problem.ranking[place]
    factor = verdict.speedup if verdict.correct else None
    if factor is not None:
        insort(problem.ranking, (-factor, variant.id))


def choose_leader(state: SessionState, variant: VariantState) -> None:
    """Who leads the round of ``variant``, whose verdict has just come in."""
    round_ = round_of(state, variant.problem, variant.round)
    if round_ is None or state.is_pruned(variant.id):
        return
    if variant.judged > 1 or round_.best == variant.id:  # it may lose its place, and may have been in a heat
        lead(state, round_)
    elif (factor := variant.speedup) is not None and factor >= (
        state.best_of_round(round_.problem, round_.number) or 0.0
    ):
        round_.best = variant.id


def lead(state: SessionState, round_: RoundState) -> None:
    """Choose the leader of the round anew. A factor that a heat has disproved leads nobody astray: those of the round
    that ran side by side have one champion, who stays that until another outruns it in a heat that has both."""
    factors = {name: state.variants[name].speedup for name in round_.variants}
    own = {name for name, factor in factors.items() if factor is not None and not state.is_pruned(name)}
    champion, raced = "", set[str]()
    for heat in (one.standings for one in state.problems[round_.problem].rounds if one.standings):
        timed = [one.variant for one in heat if one.variant in own]
        if len(timed) > 1:
            champion = timed[0] if not champion or champion in timed else champion
            raced |= set(timed) - {champion}
    left = own - (raced - {champion})
    round_.best = max(left, key=lambda name: (factors[name] or 0.0, name), default=None)


def lead_again(state: SessionState, problem: ProblemState, names: Iterable[str]) -> None:
    """Choose the leaders of all rounds that the kernels ``names`` are of."""
    touched = {state.variants[name].round for name in names if name in state.variants}
    for round_ in problem.rounds:
        if round_.number in touched:
            lead(state, round_)


def rechoose(state: SessionState, node: str, at: float) -> None:
    """After a prune or a restore: who is best, of the problem and of each round that the branch reaches into."""
    problem_id = next((above for above in state.lineage(node) if above in state.problems), node)
    choose_best(state, problem_id, challenger=None, at=at)
    if (problem := state.problems.get(problem_id)) is None:
        return
    lead_again(state, problem, problem.variants if node == problem_id else state.branch(node))


def choose_best(state: SessionState, problem_id: str, challenger: VariantState | None, at: float) -> None:
    """The best is the heat's winner until a later verdict beats it, by factor and by time: of two factors from
    different minutes one may owe more to a reference that was disturbed. Pruned variants never are the best."""
    problem = state.problems.get(problem_id)
    if problem is None:
        return
    best = state.variants.get(problem.best) if problem.best is not None else None
    if challenger is not None and challenger is not best:
        if challenger.speedup is None or state.is_pruned(challenger.id):
            return
        if best is None or _beats(challenger, best, timed=bool(problem.standings)):
            _enthrone(problem, challenger, at)
        return
    timed = [standing.variant for standing in problem.standings]
    valid = (state.variants[name] for name in timed if not state.is_pruned(name))
    winner = next((variant for variant in valid if variant.correct), None)
    others = (leader for leader in state.leaders(problem_id) if leader.id not in timed)
    later = (leader for leader in others if winner is None or (leader.judged_at or 0.0) > problem.heat_at)
    for leader in sorted(later, key=lambda one: one.judged_at or 0.0):
        if winner is None or _beats(leader, winner, timed=bool(timed)):
            winner = leader
    _enthrone(problem, winner, at)


def _enthrone(problem: ProblemState, winner: VariantState | None, at: float) -> None:
    name = winner.id if winner is not None else None
    if name != problem.best:
        problem.former, problem.best, problem.best_at = problem.best, name, at


def _beats(challenger: VariantState, best: VariantState, *, timed: bool) -> bool:
    """``timed``: whether there was a heat, which told more than a verdict."""
    ahead = (challenger.speedup or 0.0) > (best.speedup or 0.0)
    return ahead and (not timed or (challenger.kernel_ms or 0.0) < (best.kernel_ms or float("inf")))
