"""Serial: one chain, each link made from the one before, faster or not.

The sequential revision that searches with parallel branches are compared with (Stanford CRFM, "fast kernels", 2025).
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.selection.base import Candidate, Selection, against, answer, milliseconds, ranking


def serial(candidates: Sequence[Candidate], *, round_number: int, width: int, seed: int) -> Selection:
    """The fastest kernel of the newest round that has an open one, and every pinned one; ``width`` means nothing.

    A round without a correct kernel leaves the chain where it was; an end with nothing left to try leads back to the
    newest link that has something.
    """
    ranked = ranking(candidates)
    open_ones = [one for one in ranked if not one.exhausted]
    newest = max((one.round for one in open_ones), default=-1)
    link = next((one for one in open_ones if one.round == newest), None)
    if link is None:
        return answer(ranked, {}, {})
    return answer(
        ranked,
        {link.variant: _why_carried(link, ranked, round_number)},
        {one.variant: _why_dropped(one, link, ranked) for one in ranked},
    )


def _why_carried(link: Candidate, ranked: Sequence[Candidate], round_number: int) -> str:
    beside = "the best so far" if link is ranked[0] else against(link, ranked[0], ranked)
    words = f"the chain goes on: fastest of round {link.round}, {milliseconds(link.ms)}, {beside}"
    if link.round < round_number:
        return f"{words}; round {round_number} gave nothing to go on with"
    return words


def _why_dropped(one: Candidate, link: Candidate, ranked: Sequence[Candidate]) -> str:
    if one.round < link.round:
        gone_on = f"the chain has gone on to {link.variant} of round {link.round}"
        return f"of round {one.round}, {milliseconds(one.ms)}: {gone_on}"
    return f"{against(one, link, ranked)}; a chain carries one kernel"
