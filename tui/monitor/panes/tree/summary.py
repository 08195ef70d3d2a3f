"""Shorten a node's summary: drop the beginning that it shares with a neighbor's summary."""

from __future__ import annotations

import re
from collections.abc import Iterable

LEAST_CLAUSE, LEAST_WORDS = 8, 16
"""Minimum number of shared characters to drop, at the end of a clause and within a clause."""
_CLAUSE, _BETWEEN = re.compile(r"[,;:.] "), re.compile(r"[,;:.]? ")


def unshared(text: str, others: Iterable[str]) -> str:
    """Return ``text`` from its first clause that differs from ``others`` or, failing that, from its first word that
    differs. ``…`` replaces the beginning.

    Keep the word before a figure, since this word names the figure: ``accumulators 2``, not ``2``, and
    ``lanes 0 -> 8``, not ``-> 8``.
    """
    shared = max((_alike(text, other) for other in others if other != text), default=0)
    if shared < LEAST_CLAUSE:
        return text
    clauses = [match.end() for match in _CLAUSE.finditer(text, 0, shared) if match.end() <= shared]
    if clauses and clauses[-1] >= LEAST_CLAUSE:
        return f"… {text[clauses[-1] :]}"
    place = text.rfind(" ", 0, shared) + 1
    while place > 0 and (text[place].isdigit() or text.startswith("->", place)):
        place = text.rfind(" ", 0, place - 1) + 1
    return f"… {text[place:]}" if place >= LEAST_WORDS else text


def _alike(one: str, other: str) -> int:
    """Return the length of the common prefix. If ``other`` ends after the prefix, also count the separator that
    follows in ``one``.
    """
    pairs = zip(one, other, strict=False)
    alike = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    if alike == len(other) and (between := _BETWEEN.match(one, alike)) is not None:
        return between.end()
    return alike
