"""How far a search has come, and when it will end at the latest."""

from __future__ import annotations

from msgspec import Struct

from tui.view.model import Model

ENOUGH = 0.05
"""Share of a limit that must be used up before its rate of use says when it will be reached."""


class Progress(Struct, frozen=True):
    """The share of the search that is done, from 0 to 1, and the estimated seconds until its end, if known.

    ``of`` names the limit that the share refers to: ``rounds`` or ``time``, for example.
    """

    share: float
    of: str
    left_s: float | None


def progress_of(model: Model) -> Progress | None:
    """Estimate the progress of a running search from the limit that it will reach first, or return None.

    Minutes end at a known time. Rounds, turns, dollars, tokens and calls are assumed to go on at their rate so far.
    """
    if model.link.kind not in ("live", "stalled") or not model.opened:
        return None
    elapsed, limits = model.search_seconds(), model.limits
    spend = model.state.spending.total
    turns = model.state.takes_turns
    used = {
        "dollars": _share(spend.dollars, limits.dollars),
        "tokens": _share(spend.tokens, limits.tokens),
        "calls": _share(spend.calls, limits.calls),
        "problems" if turns else "rounds": _turns_done(model) if turns else _rounds_done(model),
    }
    shares = {name: min(1.0, one) for name, one in used.items() if one is not None}
    left = [elapsed * (1 - share) / share for share in shares.values() if share >= ENOUGH]
    if limits.minutes is not None and limits.minutes > 0:
        shares["time"] = min(1.0, elapsed / (limits.minutes * 60))
        left.append(max(0.0, limits.minutes * 60 - elapsed))
    if not shares:
        return None
    of = max(shares, key=lambda name: shares[name])
    return Progress(shares[of], of, min(left, default=None))


def _share(used: float, limit: float | None) -> float | None:
    return used / limit if limit else None


def _rounds_done(model: Model) -> float | None:
    """Return the share of finished rounds. A problem whose search has ended counts as done."""
    rounds, problems = model.rounds, model.state.problems.values()
    if not rounds or not problems:
        return None
    done = 0.0
    for problem in problems:
        finished = sum(one.finished_at is not None for one in problem.rounds)
        over = problem.finished is not None or model.state.is_pruned(problem.id) or problem.cannot_write is not None
        done += 1.0 if over else min(1.0, finished / (rounds + 1))
    return done / len(problems)


def _turns_done(model: Model) -> float | None:
    """Return the share of problems that are done, if the search works on one problem at a time."""
    phases = list(model.state.phases().values())
    return phases.count("done") / len(phases) if phases else None
