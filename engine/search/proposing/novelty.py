"""Detect repeated ideas by the share of words that two texts have in common. This measure is cheap and easy
to explain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from engine.proposers.protocol import TriedIdea

SAME = 0.7
"""Two ideas count as equal if they have at least this share of words in common (Jaccard index)."""
_WORD = re.compile(r"[a-z]+|\d+")
_SMALL = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by can each every for from has have in into is it its of on one only or so that "
        "the their them then there they this to use uses using we which while will with would",
    )
)


class Repeats(Struct, frozen=True):
    """An earlier idea that a new idea repeats, and the share of words that they have in common."""

    idea: str
    share: float


def repeated(text: str, tried: Iterable[TriedIdea]) -> Repeats | None:
    """Find the idea in ``tried`` that ``text`` repeats; None if ``text`` is new enough to try.

    A failed idea may be tried once more, because another kernel for this idea may be correct.
    """
    words = _words(text)
    alike = [(share, idea) for idea in tried if (share := _shared(words, _words(idea.text))) >= SAME]
    if not alike:
        return None
    failed = [idea for _, idea in alike if idea.speedup is None and idea.failure]
    if len(alike) == len(failed) == 1:
        return None
    share, idea = max(alike, key=lambda one: one[0])
    return Repeats(idea.idea, share)


def _words(text: str) -> frozenset[str]:
    return frozenset(_stem(word) for word in _WORD.findall(text.lower()) if word not in _SMALL)


def _stem(word: str) -> str:
    """Strip common endings: "loads", "loading" and "loaded" become equal."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _shared(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one and other else 0.0
