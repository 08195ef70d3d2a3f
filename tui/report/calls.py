"""Prompts and replies of the model calls. A report limits the length of these texts, so that the file stays easy to
send."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from markupsafe import Markup
from msgspec import Struct

from engine.proposers.llm.model_protocol import Prompt
from engine.session.records.model_calls import failure_words
from engine.session.state.session_state import SessionState
from engine.session.state.spend import CallState
from tui.report.code_markup import text_markup
from tui.view.conversation import ENDS, Calls, call_figures, conversation_of, purpose_words

MAX_TEXT = 2_600_000
"""Maximum number of characters of prompts and replies in a report. The best kernels' calls come first."""


class CallRow(Struct, frozen=True):
    """A call. ``system`` is the number of the call's system prompt.

    ``left_out`` counts the characters of the call that the report omits.
    """

    id: str
    about: str
    model: str
    figures: str
    trouble: str
    behind_best: bool
    system: int | None = None
    prompt: Markup = Markup()
    reply: Markup | None = None
    left_out: int = 0


class ProblemCalls(Struct, frozen=True):
    """A problem's calls, oldest first."""

    problem: str
    calls: tuple[CallRow, ...]


class CallTexts(Struct, frozen=True):
    """All calls by problem.

    ``systems`` are the distinct system prompts. ``left_out`` counts the calls whose text the report omits.
    """

    problems: tuple[ProblemCalls, ...]
    systems: tuple[Markup, ...]
    left_out: int


def call_texts(state: SessionState, text: Callable[[str], str], most: int = MAX_TEXT) -> CallTexts:
    """Return the session's calls with at most ``most`` characters of prompts and replies.

    ``text`` reads a blob. Raises SessionError if a text is unreadable.
    """
    best = behind_best(state)
    calls = list(state.spending.calls.values())
    texts = _Texts(text, most)
    rows = {call.id: texts.row(call, behind_best=call.id in best) for call in _best_first(calls, best)}
    by_problem: dict[str, list[CallRow]] = {}
    for call in calls:
        by_problem.setdefault(call.site.problem, []).append(rows[call.id])
    return CallTexts(
        tuple(ProblemCalls(name, tuple(found)) for name, found in by_problem.items()),
        tuple(text_markup(one) for one in texts.systems),
        sum(row.left_out > 0 for row in rows.values()),
    )


def behind_best(state: SessionState) -> set[str]:
    """Return the ids of the calls behind the best kernels and their ancestors."""
    index = Calls()
    best = [problem.best for problem in state.problems.values() if problem.best is not None]
    return {call for name in best for above in state.ancestors(name) for call in calls_behind(state, index, above)}


def calls_behind(state: SessionState, index: Calls, variant: str) -> list[str]:
    """Return the ids of the calls that proposed a kernel's idea, wrote the kernel or repaired it, oldest first."""
    return [turn.call.id for turn in conversation_of(state, index, None, state.variants[variant])]


def _best_first(calls: Iterable[CallState], best: set[str]) -> list[CallState]:
    return sorted(calls, key=lambda call: call.id not in best)


class _Texts:
    """Read texts until the report is full. ``systems`` collects the distinct system prompts."""

    def __init__(self, text: Callable[[str], str], most: int) -> None:
        self._text = text
        self._room = most
        self.systems: dict[str, int] = {}

    def row(self, call: CallState, *, behind_best: bool) -> CallRow:
        row = CallRow(
            id=call.id,
            about=purpose_words(call.site),
            model=call.model if call.answered in ("", call.model) else f"{call.model}, answered by {call.answered}",
            figures="; ".join(call_figures(call)),
            trouble=_trouble(call),
            behind_best=behind_best,
        )
        prompt, reply = self._text(call.prompt), self._text(call.reply) if call.reply is not None else None
        system, user = _parts(prompt)
        wanted = len(user) + len(reply or "") + (len(system) if system not in self.systems else 0)
        if wanted > self._room:
            return msgspec.structs.replace(row, left_out=wanted)
        self._room -= wanted
        number = self.systems.setdefault(system, len(self.systems) + 1) if system else None
        said = text_markup(reply) if reply is not None else None
        return msgspec.structs.replace(row, system=number, prompt=text_markup(user), reply=said)


def _parts(recorded: str) -> tuple[str, str]:
    """Return the system prompt and the user prompt of a recorded prompt.

    If the text cannot be decoded, return it unchanged as the user prompt.
    """
    try:
        prompt = Prompt.decode(recorded)
    except msgspec.MsgspecError:
        return "", recorded
    return prompt.system, prompt.user


def _trouble(call: CallState) -> str:
    if call.failure is not None:
        return f"{failure_words(call.failure)}: {call.message}"
    if call.reply is None:
        return "no reply yet"
    return ENDS.get(call.finish, "")
