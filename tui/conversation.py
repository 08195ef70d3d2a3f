"""Which calls to models wrote an idea or a kernel, in the order in which they were made; nothing of the screen.

A kernel's conversation is the call that asked for its idea, the one that wrote its first source, then every repair up
to it. An idea's is the call that it came from and those that wrote kernels for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from msgspec import Struct, field

from engine.models.protocol import CallSite, Purpose, call_name
from engine.proposers.partial import Partial, read_partial
from engine.proposers.protocol import CALL
from engine.spend import MANUAL, CallState, Spending
from engine.state import IdeaState, SessionState, VariantState
from tui.model import Model
from tui.prompts import unanswered
from tui.row import Row
from tui.source import SessionSource

WORDS: dict[Purpose, str] = {"ideas": "ideas", "kernel": "kernel", "fix": "repair"}
NOBODY = {
    "playbook": "The playbook wrote it: no model was asked.",
    "hand": "Written by hand: no model was asked.",
    "bank": "Taken from the kernels of an earlier search: no model was asked in this one.",
}
"""Who needs no model, by the name that proposers sign with."""


class Turn(Struct, frozen=True):
    """One call in a conversation. ``about``: what it was made for (``idea i4``, ``repair of v12``)."""

    about: str
    call: CallState


class Calls(Struct):
    """The calls of a session by what they are for; takes in what is new each time it is asked."""

    _spending: Spending | None = None
    _taken: int = 0
    _by_name: dict[str, list[CallState]] = field(default_factory=dict)
    _by_subject: dict[tuple[str, str, str], list[CallState]] = field(default_factory=dict)

    def named(self, state: SessionState, name: str) -> list[CallState]:
        """The calls of that name: more than one where the first had no answer, or one of no use."""
        self._take(state.spending)
        return self._by_name.get(name, [])

    def about(self, state: SessionState, problem: str, purpose: Purpose, subject: str) -> list[CallState]:
        self._take(state.spending)
        return self._by_subject.get((problem, purpose, subject), [])

    def _take(self, spending: Spending) -> None:
        if self._spending is not spending or len(spending.calls) < self._taken:
            self._spending, self._taken = spending, 0
            self._by_name.clear()
            self._by_subject.clear()
        for call in islice(spending.calls.values(), self._taken, None):
            site = call.site
            self._by_name.setdefault(call_name(site), []).append(call)
            self._by_subject.setdefault((site.problem, site.purpose, site.subject), []).append(call)
        self._taken = len(spending.calls)


def conversation_of(state: SessionState, calls: Calls, row: Row | None, subject: VariantState | None) -> list[Turn]:
    """What belongs to the selected row, for which ``subject`` stands: calls under way first, then in their order."""
    turns: list[Turn] = []
    idea = state.ideas.get(row.id) if row is not None and row.kind == "idea" else None
    if idea is not None:
        turns += _of_idea(state, calls, idea)
        for call in calls.about(state, idea.problem, "kernel", idea.id):
            turns.append(Turn(f"kernel {call.site.number + 1} for {idea.id}", call))
        turns += [turn for name in idea.variants for turn in _repairs(state, calls, name) if turn.call.flying]
        return _sorted(turns)
    if row is not None and row.kind in ("problem", "round"):
        turns += _under_way(state, row)
    if subject is not None:
        known = {turn.call.id for turn in turns}
        turns += [turn for turn in _of_variant(state, calls, subject) if turn.call.id not in known]
    return _sorted(turns)


def _sorted(turns: Iterable[Turn]) -> list[Turn]:
    return sorted(turns, key=lambda turn: not turn.call.flying)


def _of_idea(state: SessionState, calls: Calls, idea: IdeaState) -> Iterator[Turn]:
    if isinstance(name := idea.data.get(CALL), str):
        yield from (Turn(f"idea {idea.id}", call) for call in calls.named(state, name))


def _of_variant(state: SessionState, calls: Calls, variant: VariantState) -> list[Turn]:
    chain: list[Turn] = []
    here: VariantState | None = variant
    seen: set[str] = set()
    while here is not None and here.id not in seen:
        seen.add(here.id)
        name = here.data.get(CALL)
        found = calls.named(state, name) if isinstance(name, str) else []
        failed = found[0].site.subject if found and found[0].site.purpose == "fix" else None
        what = f"{here.id}, repair of {failed}" if failed is not None else f"kernel {here.id}"
        chain[:0] = [Turn(what, call) for call in found]
        here = state.variants.get(failed) if failed is not None else None
    idea = state.ideas.get(variant.idea)
    asked = list(_of_idea(state, calls, idea)) if idea is not None else []
    return [*asked, *chain, *(turn for turn in _repairs(state, calls, variant.id) if turn.call.reply is None)]


def _repairs(state: SessionState, calls: Calls, name: str) -> list[Turn]:
    """Calls that were asked to repair the kernel of that name."""
    variant = state.variants.get(name)
    found = calls.about(state, variant.problem, "fix", name) if variant is not None else []
    return [Turn(f"repair of {name}", call) for call in found]


def _under_way(state: SessionState, row: Row) -> list[Turn]:
    problem, _, number = row.id.rpartition("/r") if row.kind == "round" else (row.id, "", "")
    flying = (call for call in state.spending.flying.values() if call.site.problem == problem)
    return [Turn(_purpose(call.site), call) for call in flying if not number or call.site.round == int(number)]


def _purpose(site: CallSite) -> str:
    about = f" of {site.subject}" if site.purpose == "fix" else f" for {site.subject or 'a first kernel'}"
    return f"{WORDS[site.purpose]}{about}, round {site.round}"


def who_wrote(state: SessionState, row: Row | None, subject: VariantState | None) -> str:
    """Where no call is known: in a sentence, why not."""
    idea = state.ideas.get(row.id) if row is not None and row.kind == "idea" else None
    node = idea if idea is not None and not idea.variants else subject
    if node is None:
        return "No model was asked about this yet."
    if node.proposer in NOBODY:
        return f"{node.id}: {NOBODY[node.proposer]}"
    return f"{node.id} was written by {node.proposer}; this session holds no call that it came from."


def directory_of(model: Model) -> Path | None:
    """The session's directory, None for a replay, beside which nothing lies."""
    return model.source.paths.directory if isinstance(model.source, SessionSource) else None


def text_so_far(model: Model, call: CallState) -> Partial | None:
    """What a call under way has said, None where it has said nothing, or nobody streams."""
    directory = directory_of(model)
    if directory is None or not call.flying or call.provider == MANUAL or model.link.kind not in ("live", "stalled"):
        return None
    return read_partial(directory, call.site)


def prompts_waiting(model: Model) -> int:
    """Prompts that the search waits for and a person has not answered: no reply of theirs lies in the inbox."""
    return len(unanswered(model.state, directory_of(model)))
