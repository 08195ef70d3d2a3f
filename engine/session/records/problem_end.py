"""Reasons why the search of a problem ended, as recorded in ``ProblemFinished``."""

from __future__ import annotations

NO_IDEA = "no proposer has a new idea for any correct kernel"
NO_FIRST_KERNEL = "no correct kernel, and no proposer has another first kernel"


def rounds_complete(rounds: int) -> str:
    """Return the reason for a problem whose last round, number ``rounds``, is complete."""
    return f"round {rounds}, the last one, is complete" if rounds < 2 else f"all {rounds} rounds are complete"


def is_rounds_complete(reason: str | None) -> bool:
    """Return whether the limit on rounds ended the search of the problem, so that a higher limit continues it.

    Engines of earlier versions wrote other sentences about the last round, which also end in "complete".
    """
    return reason is not None and reason.endswith("complete")
