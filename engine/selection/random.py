"""Random: parents drawn by lot among the correct kernels. What any other strategy must beat to be worth its rules."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from engine.selection.base import Candidate, Selection, against, answer, milliseconds, ranking


def random(candidates: Sequence[Candidate], *, round_number: int, width: int, seed: int) -> Selection:
    """``width`` kernels that are not exhausted, each as likely as any other, and every pinned one.

    Each kernel draws its own lot from ``seed``, so that who else is there (pruned or seeded meanwhile) changes nothing
    about the order of the others.
    """
    ranked = ranking(candidates)
    open_ones = sorted((one for one in ranked if not one.exhausted), key=lambda one: _lot(one, seed))
    drawn = open_ones[:width]
    odds = f"{len(drawn)} of {len(open_ones)}"
    return answer(
        ranked,
        {one.variant: f"drawn by lot, {odds}: {milliseconds(one.ms)}, {one.factor} eager" for one in drawn},
        {one.variant: f"not drawn, {odds} were: {against(one, ranked[0], ranked)}" for one in ranked},
    )


def _lot(one: Candidate, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}/{one.variant}".encode()).digest()
