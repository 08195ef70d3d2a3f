"""Detect repeated ideas: the same bottleneck attacked with the same methods, or nearly the same words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from engine.proposers.idea_methods import gist_of
from engine.proposers.protocol import TriedIdea

SAME = 0.7
"""Minimum share of common words (Jaccard index) at which two ideas count as equal, unless their methods differ."""
SAME_METHODS = 0.75
"""Minimum share of common methods at which two ideas count as using the same methods."""
LEAST_METHODS = 2
"""Minimum number of common methods. A single method does not identify an idea: many ideas use shared memory."""
RELATED = 0.25
"""Minimum share of common words at which two ideas with the same methods count as equal. Ideas with fewer common words
concern different parts of the kernel.
"""
_WORD = re.compile(r"[a-z]+|\d+")
_NUMBER = re.compile(r"\d+")
_SMALL = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by can each every for from has have in into is it its of on one only or so that "
        "the their them then there they this to use uses using we which while will with would",
    )
)


class Repeats(Struct, frozen=True):
    """An earlier idea that a new idea repeats, the share of their common words, and the reason as text."""

    idea: str
    share: float
    why: str = ""


def repeated(text: str, tried: Iterable[TriedIdea], data: Mapping[str, Any] | None = None) -> Repeats | None:
    """Find the idea in ``tried`` that a new idea with ``text`` and ``data`` repeats.

    Returns None if the new idea is worth a try. A proposer may repeat a failed idea once, because another kernel for
    the idea may be correct.
    """
    alike = [(found, idea) for idea in tried if (found := _compared(text, data or {}, idea)) is not None]
    if not alike:
        return None
    failed = [idea for _, idea in alike if idea.speedup is None and idea.failure]
    if len(alike) == len(failed) == 1:
        return None
    return max((found for found, _ in alike), key=lambda found: found.share)


def _compared(text: str, data: Mapping[str, Any], idea: TriedIdea) -> Repeats | None:
    """Compare a new idea with an earlier one. Return None if the ideas differ.

    Two ideas with different numbers differ unless most of their words are equal: tiles of 128 are worth a try after
    tiles of 64.
    """
    share = _shared(_words(text), _words(idea.text))
    mine, theirs = gist_of(text, data), gist_of(idea.text, idea.data)
    methods = _shared(mine.methods, theirs.methods)
    if share >= SAME and (methods > 0 or not mine.methods or not theirs.methods):
        return Repeats(idea.idea, share, f"{share:.0%} of the words are the same")
    same_bottleneck = mine.bottleneck == theirs.bottleneck
    numbers = frozenset(_NUMBER.findall(text)), frozenset(_NUMBER.findall(idea.text))
    same_numbers = numbers[0] == numbers[1] or not numbers[0] or not numbers[1]
    enough = methods >= SAME_METHODS and len(mine.methods & theirs.methods) >= LEAST_METHODS
    if enough and same_bottleneck and same_numbers and share >= RELATED:
        named = ", ".join(sorted(mine.methods & theirs.methods))
        against = f" against {mine.bottleneck}" if mine.bottleneck else ""
        return Repeats(idea.idea, share, f"the same methods{against}: {named}")
    return None


def _words(text: str) -> frozenset[str]:
    return frozenset(_stem(word) for word in _WORD.findall(text.lower()) if word not in _SMALL)


def _stem(word: str) -> str:
    """Strip common endings: "loads", "loading" and "loaded" have the same stem."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _shared(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one and other else 0.0
