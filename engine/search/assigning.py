"""Which of a session's models is asked: by the weights of the config, or by what each has earned so far. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from engine.proposers.protocol import Role
from engine.search.telling import own_ideas
from engine.state import SessionState, VariantState

LEAST_SHARE = 0.1
"""Of its weight, what a model keeps that earned nothing: it may do better later."""
_PRIOR_QUESTIONS = 4.0
"""Each model is taken to have earned the average with so many questions before its first."""


def choose(names: Sequence[str], weights: Sequence[float], asked: Mapping[str, int]) -> str:
    """Who is next, so that over time each is asked in proportion to its weight. ``asked``: how often each was."""
    return min(names, key=lambda name: (asked.get(name, 0) + 1) / weights[names.index(name)])


def asked_for(state: SessionState, role: Role) -> dict[str, int]:
    """How many answers of ``role`` each proposer has given."""
    counts: dict[str, int] = {}
    names: list[str] = []
    if role == "ideas":
        names = [idea.proposer for idea in own_ideas(state, state.ideas)]
    else:
        names = [one.proposer for one in state.variants.values() if _is_fix(state, one) == (role == "fixes")]
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def earned_weights(state: SessionState, role: Role, names: Sequence[str], weights: Sequence[float]) -> list[float]:
    """``weights`` scaled by the speedup that each model earned per dollar in ``role``.

    What an answer earned is the logarithm of the factor by which it beat the problem's best kernel of its time (of its
    parent, for an idea). Where a price is unknown or nothing, tokens stand for dollars; where there are none either,
    answers do. A model that was asked little counts as average, one that earned nothing keeps ``LEAST_SHARE``.
    """
    gains, counts = _gains(state, role), asked_for(state, role)
    costs = _costs(state, names, counts)
    total_cost = sum(costs.values())
    asked = sum(counts.get(name, 0) for name in names)
    if not asked or total_cost <= 0:
        return list(weights)
    mean_gain = sum(gains.get(name, 0.0) for name in names) / asked
    mean_cost = total_cost / asked
    rates = [
        (gains.get(name, 0.0) + _PRIOR_QUESTIONS * mean_gain) / (costs[name] + _PRIOR_QUESTIONS * mean_cost)
        for name in names
    ]
    mean_rate = sum(rates) / len(rates)
    if mean_rate <= 0:
        return list(weights)
    return [weight * max(LEAST_SHARE, rate / mean_rate) for weight, rate in zip(weights, rates, strict=True)]


def _gains(state: SessionState, role: Role) -> dict[str, float]:
    """What each proposer's answers earned, in the order in which kernels were judged."""
    gains: dict[str, float] = {}
    best: dict[str, float] = {}
    judged = [one for one in state.variants.values() if one.judged_at is not None and one.speedup is not None]
    for variant in sorted(judged, key=lambda one: one.judged_at or 0.0):
        factor = variant.speedup or 0.0
        before = best.get(variant.problem)
        best[variant.problem] = max(factor, before or 0.0)
        if before is None or factor <= before:
            continue
        owner = state.ideas[variant.idea].proposer if role == "ideas" else variant.proposer
        if role == "ideas" or _is_fix(state, variant) == (role == "fixes"):
            gains[owner] = gains.get(owner, 0.0) + math.log(factor / before)
    return gains


def _costs(state: SessionState, names: Sequence[str], counts: Mapping[str, int]) -> dict[str, float]:
    """Each model's cost in the one unit that all of them have: dollars, else tokens, else answers."""
    spends = {name: state.spending.model.get(name) for name in names}
    for unit in ("dollars", "tokens"):
        costs = {name: float(getattr(spend, unit)) if spend is not None else 0.0 for name, spend in spends.items()}
        if all(costs[name] > 0 for name in names if counts.get(name)):
            return costs
    return {name: float(counts.get(name, 0)) for name in names}


def _is_fix(state: SessionState, variant: VariantState) -> bool:
    """Whether it repairs another kernel of its own idea."""
    return variant.parent is not None and variant.parent in state.ideas[variant.idea].variants
