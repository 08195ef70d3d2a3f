"""The tree's filter. All words of a filter must match. ``!word`` excludes matches. ``>2`` matches speedups above 2.

Filters with ``!word``, ``>`` or ``<`` match only kernels. The tree shows their ideas as ancestors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from engine.session.records.events import BY_HAND
from engine.session.state.comparable import figures_of
from engine.session.state.session_state import IdeaState, SessionState, VariantState
from tui.text.format import transformation_label
from tui.text.glyphs import stage_words
from tui.text.same_code import twin_of
from tui.text.sanitize import one_line

HELP = (
    "Each word must match the id, idea, transformation, note, status, proposer, host or problem. Ids (v7, i3, r2) and "
    "'hand' (written by hand) match exactly. !word shows the kernels without a word. >1.5 and <1 filter by speedup."
)

SHORT_HELP = "all words must match; v7, r2, hand: exact match; !word: exclude; >1.5 <1: speedup"

READ = 20_000
"""Number of characters of an idea or note that the filter reads."""
AROUND = 12
"""Number of characters that an excerpt shows on either side of a match, extended to whole words."""
_NAME = re.compile(rf"[vir]\d+|{BY_HAND}")


class Fact(NamedTuple):
    """Something that a filter can match. ``label`` is "" if the surrounding rows show the value.

    A row shows only an excerpt of a ``long`` text. For other facts, it shows ``shown``, if given, instead of the value.
    """

    label: str
    value: str
    long: bool = False
    shown: str = ""

    def around(self, word: str) -> str:
        """Return the label and value, or an excerpt around ``word``."""
        if not self.long:
            return f"{self.label} {self.shown or self.value}"
        text = one_line(self.value, READ)
        at = text.lower().find(word)
        start = text.rfind(" ", 0, max(0, at - AROUND)) + 1
        end = text.find(" ", at + len(word) + AROUND)
        return f"{'…' if start else ''}{text[start:]}" if end < 0 else f"{'…' if start else ''}{text[start:end]}…"


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
        compares = self.above is not None or self.below is not None
        figures = figures_of(state, twin_of(state, variant) or variant) if compares else None
        speedup = figures.speedup if figures is not None else None
        if self.above is not None and (speedup is None or speedup <= self.above):
            return False
        if self.below is not None and (speedup is None or speedup >= self.below):
            return False
        if not self.words and not self.without:
            return True
        idea = state.ideas.get(variant.idea)
        return self._fits([*_facts_of_variant(state, variant), *(_facts_of_idea(idea) if idea is not None else ())])

    def idea(self, state: SessionState, idea: IdeaState) -> bool:
        if self.above is not None or self.below is not None or self.without:
            return False
        return self._fits([*_names_of_idea(idea), *_facts_of_idea(idea)])

    def why(self, state: SessionState, node: VariantState | IdeaState, shown: str, *, below_idea: bool) -> list[str]:
        """Return the facts of ``node`` that match a word of the filter that its row does not show.

        ``shown`` is the row's text. ``below_idea`` is true if a variant's idea has its own row above the variant.
        """
        if isinstance(node, IdeaState):
            facts = [*_names_of_idea(node), *_facts_of_idea(node)]
        else:
            facts = _facts_of_variant(state, node)
            idea = state.ideas.get(node.idea)
            facts += _facts_of_idea(idea) if idea is not None and not below_idea else []
        found = []
        for word in (one.text for one in self.words if not one.is_name and one.text not in shown.lower()):
            if (fact := next((one for one in facts if word in one.value.lower()), None)) is not None and fact.label:
                found.append(fact.around(word))
        return list(dict.fromkeys(found))

    def _fits(self, facts: list[Fact]) -> bool:
        names = [fact.value.lower() for fact in facts if not fact.long]
        text = " ".join([fact.value for fact in facts]).lower()
        return all(word.fits(names, text) for word in self.words) and not any(
            word.fits(names, text) for word in self.without
        )


def host_of(state: SessionState, variant: VariantState) -> str:
    """Return the host that judges or has judged the kernel, or "" for the engine's own host."""
    if variant.verdict is not None and variant.verdict.host:
        return variant.verdict.host
    fact = state.devices.get(variant.device)
    return fact.host if fact is not None else ""


def _facts_of_variant(state: SessionState, variant: VariantState) -> list[Fact]:
    """Return what a filter matches for a variant, without its idea."""
    status: str = variant.verdict.status if variant.verdict is not None else "queued"
    if variant.stage is not None:
        status = stage_words(state, variant)
    facts = [Fact("", name) for name in (variant.id, variant.idea, variant.problem, f"r{variant.round}")]
    facts += [Fact("status", status), Fact("proposer", variant.proposer)]
    facts += [Fact("host", host)] if (host := host_of(state, variant)) else []
    facts += [Fact("", "pinned")] if state.is_pinned(variant.id) else []
    facts += [Fact("", "pruned")] if state.is_pruned(variant.id) else []
    return [*facts, Fact("note", variant.note[:READ], long=True)]


def _names_of_idea(idea: IdeaState) -> list[Fact]:
    """Return an idea's names and state."""
    facts = [Fact("", name) for name in (idea.id, idea.problem, f"r{idea.round}")]
    facts += [Fact("proposer", idea.proposer)]
    facts += [Fact("", BY_HAND)] if idea.by_hand else []
    return [*facts, *([Fact("", "waiting")] if idea.needs_kernel else [])]


def _facts_of_idea(idea: IdeaState) -> list[Fact]:
    """Return what a filter matches for an idea and for its variants."""
    name, label = idea.transformation, transformation_label(idea.transformation)
    transformation = [Fact("transformation", f"{name} {label}", shown=name)] if name else []
    return [*transformation, Fact("idea", idea.text[:READ], long=True), Fact("category", idea.category)]


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
