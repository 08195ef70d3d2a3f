"""The filter of the tree: words that must all be found, ``!word`` that must not, ``>2`` for a factor over eager."""

from __future__ import annotations

from msgspec import Struct

from engine.state import IdeaState, SessionState, VariantState

HELP = (
    "words must all match id, idea, note, status, proposer or problem; !word excludes; >1.5 and <1 compare the speedup"
)

SHORT_HELP = "words must match; !word excludes; >1.5 and <1 compare the speedup"

READ = 20_000
"""Characters of an idea or a note in which words are looked for."""


class Matcher(Struct, frozen=True):
    words: tuple[str, ...]
    without: tuple[str, ...]
    above: float | None
    below: float | None

    def variant(self, state: SessionState, variant: VariantState) -> bool:
        factor = variant.speedup
        if self.above is not None and (factor is None or factor <= self.above):
            return False
        if self.below is not None and (factor is None or factor >= self.below):
            return False
        if not self.words and not self.without:
            return True
        idea = state.ideas.get(variant.idea)
        status = variant.stage or (variant.verdict.status if variant.verdict is not None else "queued")
        flags = ("pinned " if state.is_pinned(variant.id) else "") + ("pruned" if state.is_pruned(variant.id) else "")
        about = f"{idea.category} {idea.text[:READ]}" if idea is not None else ""
        return self._text(
            f"{variant.id} {variant.idea} {variant.problem} r{variant.round} {status} {flags} {variant.proposer} "
            f"{variant.note[:READ]} {about}"
        )

    def idea(self, state: SessionState, idea: IdeaState) -> bool:
        if self.above is not None or self.below is not None:
            return False
        waiting = "waiting" if idea.waiting is not None else ""
        return self._text(
            f"{idea.id} {idea.problem} r{idea.round} {idea.proposer} {idea.category} {waiting} {idea.text[:READ]}"
        )

    def _text(self, text: str) -> bool:
        folded = text.lower()
        return all(word in folded for word in self.words) and not any(word in folded for word in self.without)


def parse_filter(text: str) -> Matcher:
    """Every text is a filter: a comparison that does not read as one is a word."""
    words: list[str] = []
    without: list[str] = []
    bounds: dict[str, float] = {}
    for word in text.lower().split():
        if word[0] in "<>" and (bound := _number(word[1:].rstrip("x"))) is not None:
            bounds[word[0]] = bound
        elif word[0] == "!" and len(word) > 1:
            without.append(word[1:])
        else:
            words.append(word)
    return Matcher(tuple(words), tuple(without), bounds.get(">"), bounds.get("<"))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
