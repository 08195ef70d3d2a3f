"""Random: draw parents from the correct kernels. Random selection is the baseline that every other strategy must
beat.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from engine.search.strategies.base import Candidate, Selection, against, answer, milliseconds, ranking


def random(candidates: Sequence[Candidate], *, round_number: int, width: int, seed: int) -> Selection:
    """Select ``width`` unexhausted kernels with equal probability, and all pinned kernels.

    The draw gives each kernel a random number that depends only on ``seed`` and the kernel's name. Pruning or seeding
    other kernels does not change this number.
    """
    ranked = ranking(candidates)
    open_ones = sorted((one for one in ranked if not one.exhausted), key=lambda one: _lot(one, seed))
    drawn = open_ones[:width]
    odds = f"{len(drawn)} of {len(open_ones)}"
    return answer(
        ranked,
        {
            one.variant: f"drawn at random ({odds}): {milliseconds(one.ms)}, {one.speedup_words} over eager"
            for one in drawn
        },
        {one.variant: f"not drawn ({odds} were): {against(one, ranked[0], ranked)}" for one in ranked},
    )


def _lot(one: Candidate, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}/{one.variant}".encode()).digest()
