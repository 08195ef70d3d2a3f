"""How sure a factor over eager is, of kernels, rounds and torch.compile: a mark, and its 95 % interval."""

from __future__ import annotations

from engine.factor import marked, speedup
from engine.state import ProblemState, SessionState, VariantState
from engine.verdict import Verdict


def factor_words(verdict: Verdict | None) -> str:
    """``1.57x``; ``~1.57x`` where its interval is wider than a fifth of it."""
    return verdict.factor if verdict is not None else "-"


def round_factor_words(state: SessionState, problem: str, number: int) -> str:
    """The best factor of a round, marked where it is its leader's own."""
    leader, best = state.leader_of_round(problem, number), state.best_of_round(problem, number)
    own = leader is not None and abs((leader.speedup or 0.0) - (best or 0.0)) < 1e-9
    return factor_words(leader.verdict) if leader is not None and own else speedup(best)


def over_compile(problem: ProblemState, variant: VariantState) -> float | None:
    """Time of ``torch.compile`` / the kernel's, None until that is measured."""
    compiled = problem.baselines.get("compile")
    if not variant.correct or not variant.kernel_ms or compiled is None or compiled.timing is None:
        return None
    return compiled.timing.median_ms / variant.kernel_ms


def over_compile_words(problem: ProblemState, variant: VariantState) -> str | None:
    """The factor over torch.compile, marked where other programs had a hand in that time; None until there is one."""
    ahead, compiled = over_compile(problem, variant), problem.baselines.get("compile")
    return marked(speedup(ahead), compiled is not None and compiled.disturbed) if ahead is not None else None


def is_unsure(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.hardly_known


def interval_words(verdict: Verdict | None) -> str:
    """``[1.35, 1.64]``, "" where it is not known."""
    if verdict is None or verdict.speedup_low is None or verdict.speedup_high is None:
        return ""
    low, high = (speedup(end).removesuffix("x") for end in (verdict.speedup_low, verdict.speedup_high))
    return f"[{low}, {high}]"
