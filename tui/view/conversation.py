"""Find the model calls behind an idea or a kernel, oldest first.

A kernel's conversation consists of the call for its idea, the call for its first source, and all repairs. An idea's
conversation consists of the call that proposed it and the calls that wrote its kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec import Struct, field

from engine.proposers.partial_replies import Partial, read_partial
from engine.proposers.protocol import CALL
from engine.session.records.model_calls import CallSite, Purpose, call_name
from engine.session.state.session_state import IdeaState, SessionState, VariantState
from engine.session.state.spend import MANUAL, CallState, Spending
from tui.text import format as fmt
from tui.text.sanitize import one_line
from tui.view.model import Model
from tui.view.row import Row

WORDS: dict[Purpose, str] = {"ideas": "ideas", "kernel": "kernel", "fix": "repair"}
ENDS = {"stop": "", "length": "cut off at the output limit", "refusal": "refused by the model or its filter"}
NOBODY = {
    "playbook": "Written by the playbook, without a model.",
    "hand": "Written by hand.",
    "bank": "Copied from an earlier session as a warm start.",
}
"""Explanation for each source of kernels that does not call a model."""


class Turn(Struct, frozen=True):
    """A call in a conversation. ``about`` is the call's purpose, such as ``idea i4`` or ``repair of v12``."""

    about: str
    call: CallState


class Calls(Struct):
    """Index of a session's calls by name and purpose. Each query indexes new calls first."""

    _spending: Spending | None = None
    _taken: int = 0
    _by_name: dict[str, list[CallState]] = field(default_factory=dict)
    _by_subject: dict[tuple[str, str, str], list[CallState]] = field(default_factory=dict)

    def named(self, state: SessionState, name: str) -> list[CallState]:
        """Return the calls named ``name``. The engine repeats a call if its reply is missing or unusable."""
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
    """Return the calls of the selected row and its kernel ``subject``, with calls in flight first."""
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
    """Return a kernel's repair calls."""
    variant = state.variants.get(name)
    found = calls.about(state, variant.problem, "fix", name) if variant is not None else []
    return [Turn(f"repair of {name}", call) for call in found]


def _under_way(state: SessionState, row: Row) -> list[Turn]:
    problem, _, number = row.id.rpartition("/r") if row.kind == "round" else (row.id, "", "")
    flying = (call for call in state.spending.flying.values() if call.site.problem == problem)
    return [Turn(purpose_words(call.site), call) for call in flying if not number or call.site.round == int(number)]


def purpose_words(site: CallSite) -> str:
    """Describe what a call requests, such as ``repair of v12, round 2``."""
    about = f" of {site.subject}" if site.purpose == "fix" else f" for {site.subject or 'a first kernel'}"
    return f"{WORDS[site.purpose]}{about}, round {site.round}"


def who_wrote(state: SessionState, row: Row | None, subject: VariantState | None) -> str:
    """Say in one sentence why there is no recorded call."""
    idea = state.ideas.get(row.id) if row is not None and row.kind == "idea" else None
    node = idea if idea is not None and not idea.variants else subject
    if node is None:
        return "The search has not called a model for this node yet."
    if node.proposer in NOBODY:
        return f"{node.id}: {NOBODY[node.proposer]}"
    return f"{node.proposer} wrote {node.id}; this session has no record of the call."


def text_so_far(model: Model, call: CallState) -> Partial | None:
    """Return the partial reply of a call in flight, or None if the provider has streamed nothing."""
    directory = model.directory
    if directory is None or not call.flying or call.provider == MANUAL or model.link.kind not in ("live", "stalled"):
        return None
    return read_partial(directory, call.site)


def call_figures(call: CallState) -> Iterator[str]:
    """Yield a call's time, tokens and cost, as text."""
    seconds = call.ended_at - call.started_at if call.ended_at is not None else None
    took = "" if seconds is None else f"{max(0.0, seconds):.1f}s" if seconds < 10 else fmt.age(seconds)
    if call.reply is not None and took:
        yield f"answered after {took}" + (f", on attempt {call.attempts}" if call.attempts > 1 else "")
    elif took:
        yield f"{call.attempts} attempt{'' if call.attempts == 1 else 's'} in {took}"
    usage = call.usage
    if usage is not None and usage.total:
        cached = f" ({usage.cached:,} cached)" if usage.cached else ""
        thought = f" ({usage.reasoning:,} reasoning)" if usage.reasoning else ""
        yield f"{usage.input:,} tokens in{cached}, {usage.output:,} out{thought}"
        yield f"${call.dollars:.4f}" if call.dollars is not None else "price unknown"
    elif usage is None and call.reply is not None:
        yield "the provider did not report token counts"
    if call.tier not in ("", "default", "auto"):
        yield f"tier {one_line(call.tier, 40)}"
