"""Choose the model for a request, by the config's weights or by each model's speedup gain per dollar. All functions are
pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from engine.config.roles import Role
from engine.search.proposing.proposer_context import own_ideas
from engine.session.state.session_state import SessionState, VariantState

LEAST_SHARE = 0.1
"""Minimum share of its weight that a model keeps."""
_PRIOR_QUESTIONS = 4.0
"""Weight of the prior, in requests. Each model starts as if it had answered this many requests with the average gain.
"""


def choose(names: Sequence[str], weights: Sequence[float], asked: Mapping[str, int]) -> str:
    """Choose the model for the next request, so that the models' shares of requests approach their weights. ``asked``
    counts earlier requests.
    """
    return min(names, key=lambda name: (asked.get(name, 0) + 1) / weights[names.index(name)])


def asked_for(state: SessionState, role: Role) -> dict[str, int]:
    """Count each proposer's answers to requests for ``role``."""
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
    """Scale ``weights`` by each model's speedup gain per dollar for ``role``.

    An answer's gain is the logarithm of its speedup over the problem's best kernel at that time. If a price is unknown
    or zero, tokens replace dollars. If token counts are missing, answers replace tokens. With few requests, a model's
    gain per dollar stays close to the average. A model keeps at least ``LEAST_SHARE`` of its weight.
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
    """Sum each proposer's gains, with kernels in the order of their verdicts."""
    gains: dict[str, float] = {}
    best: dict[str, float] = {}
    judged = [one for one in state.variants.values() if one.judged_at is not None and one.speedup is not None]
    for variant in sorted(judged, key=lambda one: one.judged_at or 0.0):
        speedup = variant.speedup or 0.0
        before = best.get(variant.problem)
        best[variant.problem] = max(speedup, before or 0.0)
        if before is None or speedup <= before:
            continue
        owner = state.ideas[variant.idea].proposer if role == "ideas" else variant.proposer
        if role == "ideas" or _is_fix(state, variant) == (role == "fixes"):
            gains[owner] = gains.get(owner, 0.0) + math.log(speedup / before)
    return gains


def _costs(state: SessionState, names: Sequence[str], counts: Mapping[str, int]) -> dict[str, float]:
    """Return each model's cost in the first unit that is known for all models: dollars, tokens or answers."""
    spends = {name: state.spending.model.get(name) for name in names}
    for unit in ("dollars", "tokens"):
        costs = {name: float(getattr(spend, unit)) if spend is not None else 0.0 for name, spend in spends.items()}
        if all(costs[name] > 0 for name in names if counts.get(name)):
            return costs
    return {name: float(counts.get(name, 0)) for name in names}


def _is_fix(state: SessionState, variant: VariantState) -> bool:
    """Return whether the kernel repairs another kernel of its idea."""
    return variant.parent is not None and variant.parent in state.ideas[variant.idea].variants
