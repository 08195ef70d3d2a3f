"""The tree's filter. All words of a filter must match. ``!word`` excludes matches. ``>2`` matches speedups above 2."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from engine.session.records.events import BY_HAND
from engine.session.state.comparable import figures_of
from engine.session.state.session_state import IdeaState, SessionState, VariantState
from tui.text.format import transformation_label

HELP = (
    "Each word must match the id, idea, transformation, note, status, proposer, host or problem. Ids (v7, i3, r2) and "
    "'hand' (written by hand) match exactly. !word excludes a word. >1.5 and <1 filter by speedup."
)

SHORT_HELP = "all words must match; v7, r2, hand: exact match; !word: exclude; >1.5 <1: speedup"

READ = 20_000
"""Number of characters of an idea or note that the filter reads."""
_NAME = re.compile(rf"[vir]\d+|{BY_HAND}")


class Word(Struct, frozen=True):
    """A word of the filter. If ``is_name``, the word must equal a name. Otherwise, the word may match any part of the
    text.
    """

    text: str
    is_name: bool

    def fits(self, names: Iterable[str], text: str) -> bool:
        return self.text in (names if self.is_name else text)


class Matcher(Struct, frozen=True):
    words: tuple[Word, ...]
    without: tuple[Word, ...]
    above: float | None
    below: float | None

    def variant(self, state: SessionState, variant: VariantState) -> bool:
        figures = figures_of(state, variant) if self.above is not None or self.below is not None else None
        speedup = figures.speedup if figures is not None else None
        if self.above is not None and (speedup is None or speedup <= self.above):
            return False
        if self.below is not None and (speedup is None or speedup >= self.below):
            return False
        if not self.words and not self.without:
            return True
        idea = state.ideas.get(variant.idea)
        status: str = variant.stage or (variant.verdict.status if variant.verdict is not None else "queued")
        if state.is_interrupted(variant):
            status = "interrupted"
        names = [variant.id, variant.idea, variant.problem, f"r{variant.round}", status, variant.proposer]
        names += [host] if (host := host_of(state, variant)) else []
        names += ["pinned"] if state.is_pinned(variant.id) else []
        names += ["pruned"] if state.is_pruned(variant.id) else []
        about = f"{idea.category} {_said(idea)}" if idea is not None else ""
        return self._fits(names, f"{variant.note[:READ]} {about}")

    def idea(self, state: SessionState, idea: IdeaState) -> bool:
        if self.above is not None or self.below is not None:
            return False
        names = [idea.id, idea.problem, f"r{idea.round}", idea.proposer, idea.category]
        names += [BY_HAND] if idea.by_hand else []
        names += ["waiting"] if idea.waiting is not None else []
        return self._fits(names, _said(idea))

    def _fits(self, names: list[str], about: str) -> bool:
        names = [name.lower() for name in names]
        text = f"{' '.join(names)} {about.lower()}"
        return all(word.fits(names, text) for word in self.words) and not any(
            word.fits(names, text) for word in self.without
        )


def host_of(state: SessionState, variant: VariantState) -> str:
    """Return the host that judges or has judged the kernel, or "" for the engine's own host."""
    if variant.verdict is not None and variant.verdict.host:
        return variant.verdict.host
    fact = state.devices.get(variant.device)
    return fact.host if fact is not None else ""


def _said(idea: IdeaState) -> str:
    """Return the idea's transformation, by name and as the tree shows it, and the idea's text."""
    return f"{idea.transformation} {transformation_label(idea.transformation)} {idea.text[:READ]}"


def parse_filter(text: str) -> Matcher:
    """Parse any text as a filter. All parts except comparisons are words."""
    words: list[Word] = []
    without: list[Word] = []
    bounds: dict[str, float] = {}
    for word in text.lower().split():
        if word[0] in "<>" and (bound := _number(word[1:].rstrip("x"))) is not None:
            bounds[word[0]] = bound
        elif word[0] == "!" and len(word) > 1:
            without.append(_word(word[1:]))
        else:
            words.append(_word(word))
    return Matcher(tuple(words), tuple(without), bounds.get(">"), bounds.get("<"))


def _word(text: str) -> Word:
    return Word(text, _NAME.fullmatch(text) is not None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
