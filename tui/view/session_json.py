"""Build the output of ``show --json`` for a session: its results, limits, engine and costs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import asdict

from engine.config.tolerance import tolerance_name
from engine.session.state.session_state import SessionState
from engine.session.state.spend import Spend
from tui.view.results import ResultRow, Results
from tui.view.source import Limits


def session_json(state: SessionState, results: Results, created: Limits, config: str) -> dict[str, Any]:
    """Return a session's data for ``show --json``.

    ``created`` contains the limits in the session's config, and ``config`` is the path of that file. Times are in
    milliseconds. Speedups are over eager, with a 95% interval. ``dollars`` is null if a price is unknown.
    """
    minutes = state.minutes if state.minutes is not None else created.minutes
    return asdict(results) | {
        "config": config,
        "device": next((device.name for device in state.devices.values()), None),
        "devices": list(state.devices.values()),
        "engine": {
            "minutes": results.seconds / 60,
            "minutes_limit": minutes,
            "starts": state.starts,
            "message": state.engine.message if state.engine is not None else "",
        },
        "best": {row.problem: _best(state, row, results) for row in results.problems},
        "counts": {
            "problems": dict(Counter(row.status for row in results.problems)),
            "rounds": sum(len(problem.rounds) for problem in state.problems.values()),
            "ideas": len(state.ideas),
            "kernels": len(state.variants),
            "not_judged": state.not_judged(),
            "verdicts": dict(Counter(one.verdict.status for one in state.variants.values() if one.verdict is not None)),
            "repeats": sum(len(idea.repeats) for idea in state.ideas.values()),
            "calls": state.spending.total.calls,
        },
        "spend": _spend(state.spending.total),
        "models": {name: _spend(spend) for name, spend in state.spending.model.items()},
    }


def _best(state: SessionState, row: ResultRow, results: Results) -> dict[str, Any]:
    variant = state.variants.get(row.best) if row.best is not None else None
    between = (row.speedup_low, row.speedup_high)
    return {
        "status": row.status,
        "kernel": row.best,
        "language": variant.language if variant is not None else None,
        "proposer": variant.proposer if variant is not None else None,
        "ms": row.best_ms,
        "speedup": row.speedup,
        "interval": None if None in between else between,
        "uncertain": row.uncertain,
        "speedup_over_compile": row.over_compile,
        "uncertain_over_compile": row.over_compile_uncertain,
        "tolerance": tolerance_name(results.tolerance),
        "file": row.file,
    }


def _spend(spend: Spend) -> dict[str, Any]:
    """Return costs as JSON. ``unconfirmed`` is the total of attempts without a reported cost, at their maximum cost."""
    return {
        "calls": spend.calls,
        "failed": spend.failed,
        "tokens": spend.tokens,
        "input_tokens": spend.usage.input,
        "output_tokens": spend.usage.output,
        "dollars": None if spend.unpriced else spend.dollars,
        "unconfirmed": {
            "calls": spend.uncertain,
            "tokens": spend.unknown.tokens,
            "dollars": spend.unknown.dollars,
        },
    }
