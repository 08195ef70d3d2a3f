"""Rank a problem's kernels, and choose each round's best, after every verdict and prune. All functions are pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from statistics import median_low

from engine.session.records.verdict import Verdict
from engine.session.records.verdict_text import counts_by_low_end
from engine.session.state.comparable import comparable_speedup, relative_times
from engine.session.state.nodes import ProblemState, RoundState, VariantState
from engine.session.state.session_data import SessionData, round_of


def reached_in_runoff(timed: Sequence[tuple[float, float]]) -> float:
    """Estimate the runoff winner's speedup, for comparison with kernels outside the runoff.

    A disturbed reference distorts single speedups and must not rank a kernel ahead of a faster kernel. The estimate is
    the winner's own speedup or, if larger, the median of the values that all entrants imply.

    Args:
        timed: Pairs of (speedup, time / winner's time), one per entrant, the winner first. Not empty.
    """
    return max(timed[0][0], median_low([speedup * ratio for speedup, ratio in timed]))


def standing_order(state: SessionData, problem: str, count: int | None) -> list[VariantState]:
    """Return a problem's kernels in display order; see ``SessionState.standing_order``."""
    found = state.problems.get(problem)
    if found is None:
        return []
    most = count + len(found.relative) if count is not None else None  # A runoff may have lowered that many speedups.
    shown = {one.id: one for one in state.leaders(problem, most)}
    for name in (*found.relative, found.best):  # By their own speedups, these kernels may rank too low.
        variant = state.variants.get(name or "")
        if variant is not None and variant.speedup is not None and not state.is_pruned(variant.id):
            shown.setdefault(variant.id, variant)
    order = sorted(shown.values(), key=lambda one: -comparable_speedup(state, one))
    timed = {one.variant for one in found.standings if one.decides}
    best = next((place for place, one in enumerate(order) if one.id == found.best), None)
    if best is not None:  # Only kernels from the best kernel's runoff may rank ahead of it.
        before, timed = order[:best], timed if found.best in timed else set()
        ahead = [one for one in before if one.id in timed]
        order = [*ahead, order[best], *(one for one in before if one.id not in timed), *order[best + 1 :]]
    return order[:count]


def rank(state: SessionData, variant: VariantState, verdict: Verdict) -> None:
    """Move ``variant`` to its new place in the ranking after a verdict."""
    if (problem := state.problems.get(variant.problem)) is None:
        return
    if variant.speedup is not None:
        place = bisect_left(problem.ranking, (-variant.speedup, variant.id))
        if place < len(problem.ranking) and problem.ranking[place][1] == variant.id:
            del problem.ranking[place]
    speedup = verdict.speedup if verdict.correct else None
    if speedup is not None:
        insort(problem.ranking, (-speedup, variant.id))


def choose_leader(state: SessionData, variant: VariantState) -> None:
    """Update the leader of ``variant``'s round after a new verdict."""
    round_ = round_of(state, variant.problem, variant.round)
    if round_ is None or state.is_pruned(variant.id):
        return
    leader = state.variants.get(round_.best) if round_.best is not None else None
    if variant.judged > 1 or leader is variant:
        lead(state, round_)  # The kernel may drop in rank, and an earlier runoff may overrule its speedup.
    elif variant.speedup is not None and (leader is None or variant.speedup >= (leader.speedup or 0.0)):
        round_.best = variant.id


def lead(state: SessionData, round_: RoundState) -> None:
    """Choose a round's fastest kernel again, without regard to the problem's best kernel.

    A runoff overrules the speedups of separate verdicts. The runoff's fastest kernel leads until another kernel beats
    it in a later runoff. Runoffs of later rounds have no effect, so that a round's leader stays the same.
    """
    problem = state.problems[round_.problem]
    speedups = {name: state.variants[name].speedup for name in round_.variants}
    own = {name for name, speedup in speedups.items() if speedup is not None and not state.is_pruned(name)}
    champion, raced = "", set[str]()
    for runoff in (one.standings for one in problem.rounds if one.standings and one.number <= round_.number):
        timed = [one.variant for one in runoff if one.variant in own and one.decides]
        if len(timed) > 1:
            champion = timed[0] if not champion or champion in timed else champion
            raced |= set(timed) - {champion}
    left = own - (raced - {champion})
    round_.best = max(left, key=lambda name: (speedups[name] or 0.0, name), default=None)


def lead_again(state: SessionData, problem: ProblemState, names: Iterable[str]) -> None:
    """Choose new leaders for all rounds that contain the kernels ``names``."""
    touched = {state.variants[name].round for name in names if name in state.variants}
    for round_ in problem.rounds:
        if round_.number in touched:
            lead(state, round_)


def rechoose(state: SessionData, node: str, at: float) -> None:
    """After a prune or a restore, choose the best kernel of the problem and of each affected round again."""
    problem_id = next((above for above in state.lineage(node) if above in state.problems), node)
    choose_best(state, problem_id, challenger=None, at=at)
    if (problem := state.problems.get(problem_id)) is None:
        return
    lead_again(state, problem, problem.variants if node == problem_id else state.branch(node))


def choose_best(state: SessionData, problem_id: str, challenger: VariantState | None, at: float) -> None:
    """Choose the best kernel of a problem. Pruned variants never qualify.

    A runoff's winner stays the best until a later verdict beats the winner in both speedup and time. Speedups alone are
    not comparable, because a disturbed reference can inflate a single speedup.
    """
    problem = state.problems.get(problem_id)
    if problem is None:
        return
    best = state.variants.get(problem.best or "")
    if challenger is None or challenger is best:
        winner = _fastest(state, problem)
    else:
        qualifies = challenger.speedup is not None and not state.is_pruned(challenger.id)
        beats = qualifies and (best is None or challenger.beats(best, timed=bool(problem.standings)))
        winner = challenger if beats else best
    if winner is not best:
        problem.former, problem.best = problem.best, winner.id if winner is not None else None
    note_lead(state, problem, best, at)
    if challenger is None or challenger is best or winner is not best:
        compare(state, problem)


def _fastest(state: SessionData, problem: ProblemState) -> VariantState | None:
    """Return the runoff's winner or, if a later verdict beats the winner, that verdict's kernel.

    A kernel whose place is uncertain qualifies by its own verdict if the runoff's first kernel no longer does.
    """
    timed = [standing.variant for standing in problem.standings if standing.decides]
    winner = runoff_winner(state, problem)
    lacks_first = winner is not None and winner.id != problem.standings[0].variant
    doubtful = {one.variant for one in problem.standings if lacks_first and not one.decides}
    others = [leader for leader in state.leaders(problem.id) if leader.id not in timed]
    later = [
        leader for leader in others if winner is None or leader.judged_seq > problem.runoff_seq or leader.id in doubtful
    ]
    for leader in sorted(later, key=lambda one: one.judged_seq):
        if winner is None or leader.beats(winner, timed=bool(timed)):
            winner = leader
    return winner


def runoff_winner(state: SessionData, problem: ProblemState) -> VariantState | None:
    """Return the fastest kernel of the problem's latest runoff.

    Return a tied kernel instead if the ranking uses the low end of this kernel's interval but the tied kernel's full
    speedup.
    """
    valid = [
        (standing, variant)
        for standing in problem.standings
        if standing.decides
        and not state.is_pruned((variant := state.variants[standing.variant]).id)
        and variant.correct
    ]
    if not valid:
        return None
    fastest = valid[0][1]
    if fastest.verdict is not None and counts_by_low_end(fastest.verdict):
        for standing, variant in valid[1:]:
            if standing.tied and variant.verdict is not None and not counts_by_low_end(variant.verdict):
                return variant
    return fastest


def note_lead(state: SessionData, problem: ProblemState, before: VariantState | None, at: float) -> None:
    """Record whether a problem's best kernel has a measurable lead or only ties.

    The ranking needs a best kernel even if kernels tie, so tied kernels may take turns as the best. Only a measurable
    lead is worth an announcement. The best kernel keeps its lead until another kernel becomes the best.

    Args:
        state: The session's state.
        problem: The problem, with its best kernel after the event.
        before: The best kernel before the event.
        at: The time of the event.
    """
    best = state.variants.get(problem.best or "")
    if before is best:
        if problem.tied_with is None:
            return
        before = state.variants[problem.tied_with]
    rivals = [one for one in (state.variants.get(problem.best_with_lead or ""), before) if one is not None]
    rivals = [one for one in rivals if one is not best and one.correct and not state.is_pruned(one.id)]
    problem.tied_with = _tied_rival(problem, best, rivals) if best is not None else None
    if problem.tied_with is None and problem.best_with_lead != problem.best:
        problem.best_with_lead, problem.lead_at = problem.best, at


def _tied_rival(problem: ProblemState, best: VariantState, rivals: Sequence[VariantState]) -> str | None:
    """Return the kernel over which ``best`` has no measurable lead, or None if it has a lead.

    The newest runoff that timed ``best`` and a rival decides, unless a later verdict followed. Without such a runoff,
    the 95% interval of the best kernel's speedup must be above the first rival's interval.
    """
    for rival in rivals:
        for round_ in reversed(problem.rounds):
            timed = {one.variant: one for one in round_.standings if one.decides}
            is_newer = round_.runoff_seq > max(best.judged_seq, rival.judged_seq)
            if is_newer and best.id in timed and rival.id in timed:
                return rival.id if timed[best.id].tied and timed[rival.id].tied else None
    if not rivals or _interval(best)[0] > _interval(rivals[0])[1]:
        return None
    return rivals[0].id


def _interval(variant: VariantState) -> tuple[float, float]:
    verdict, speedup = variant.verdict, variant.speedup or 0.0
    return (verdict and verdict.speedup_low) or speedup, (verdict and verdict.speedup_high) or speedup


def compare(state: SessionData, problem: ProblemState) -> None:
    """Update the relative times of the kernels that runoffs timed."""
    if any(one.standings for one in problem.rounds):
        best = state.variants.get(problem.best or "")
        problem.relative = relative_times(state, problem, best, runoff_winner(state, problem))
