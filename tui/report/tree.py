"""The tree of a search: problems, rounds, ideas and kernels, with each kernel's status, speedup and change."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from engine.session.records.verdict_text import speedup_words
from engine.session.state.comparable import comparable_speedup
from engine.session.state.session_state import IdeaState, ProblemState, RoundState, SessionState, VariantState
from tui.compare.change import change_against_parent, change_words
from tui.text.certainty import comparable_ms, comparable_words, correction_words, round_speedup_words
from tui.text.format import transformation_label
from tui.text.glyphs import GLYPHS, stage_words, standing_of
from tui.text.narration import repeat_words
from tui.text.runoff_text import why_no_star
from tui.text.same_code import speedup_in_words, twin_of
from tui.text.sanitize import one_line

REASON_CHARS = 300
"""Maximum length of a verdict's reason or of a note in the tree, in characters."""


class KernelRow(Struct, frozen=True):
    """A kernel in the tree. ``style`` is the CSS class of its glyph. ``fate`` is "selected", "dropped" or ""."""

    id: str
    glyph: str
    style: str
    status: str
    about: str
    note: str
    speedup: str
    change: str
    ms: str
    fate: str
    why: str


class IdeaRows(Struct, frozen=True):
    """An idea with its kernels. ``begin`` is the start of the idea, in one line.

    ``text`` is the whole idea, or "" if ``begin`` shows all of it.
    """

    id: str
    begin: str
    text: str
    kind: str
    proposer: str
    parent: str
    best: str
    remarks: tuple[str, ...]
    kernels: tuple[KernelRow, ...]


class RoundRows(Struct, frozen=True):
    """A round with its ideas."""

    number: int
    tally: str
    best: str
    parents: str
    ideas: tuple[IdeaRows, ...]


class ProblemRows(Struct, frozen=True):
    """A problem with its rounds."""

    id: str
    status: str
    best: str
    rounds: tuple[RoundRows, ...]


def tree_of(state: SessionState) -> list[ProblemRows]:
    return [_problem(state, problem) for problem in state.problems.values()]


def _problem(state: SessionState, problem: ProblemState) -> ProblemRows:
    best = state.variants.get(problem.best or "")
    status = "pruned" if state.is_pruned(problem.id) else problem.finished or "not finished"
    return ProblemRows(
        id=problem.id,
        status=status,
        best=f"{best.id} {speedup_words(best.verdict)}" if best is not None else "",
        rounds=tuple(_round(state, problem, round_) for round_ in problem.rounds),
    )


def _round(state: SessionState, problem: ProblemState, round_: RoundState) -> RoundRows:
    judged = [one for one in (state.variants[name] for name in round_.variants) if one.was_judged]
    parts = [f"{sum(one.correct for one in judged)}/{len(judged)} correct"]
    not_judged = sum(state.at_rest and name in state.flight for name in round_.variants)
    parts += [f"{not_judged} not judged"] if not_judged else []
    if round_.finished_at is not None:
        parts.append(f"{len(round_.selected)} selected")
    parts += filter(None, [correction_words(state, round_)])
    reached = state.best_of_round(problem.id, round_.number)
    return RoundRows(
        number=round_.number,
        tally=" · ".join(parts),
        best=round_speedup_words(state, problem.id, round_.number) if reached is not None else "",
        parents=", ".join(one.variant for one in round_.parents),
        ideas=tuple(_idea(state, state.ideas[name]) for name in round_.ideas),
    )


def _idea(state: SessionState, idea: IdeaState) -> IdeaRows:
    kernels = [state.variants[name] for name in idea.variants]
    timed = [found for one in kernels if (found := twin_of(state, one) or one).speedup is not None]
    best = max(timed, key=partial(comparable_speedup, state), default=None)
    begin = one_line(idea.text, 160)
    remarks = [f"not judged again: {repeat_words(repeat)}" for repeat in idea.repeats]
    if idea.waiting is not None:
        remarks.append(f"no kernel: {idea.waiting}")
    return IdeaRows(
        id=idea.id,
        begin=begin,
        text="" if begin == idea.text.strip() else idea.text,
        kind=transformation_label(one_line(idea.transformation, 80)) or idea.category,
        proposer=idea.proposer,
        parent=idea.parent or "",
        best=comparable_words(state, best) if best is not None else "",
        remarks=tuple(remarks),
        kernels=tuple(_kernel(state, one) for one in kernels),
    )


def _kernel(state: SessionState, variant: VariantState) -> KernelRow:
    standing, verdict = standing_of(state, variant), variant.verdict
    timed = twin_of(state, variant) or variant
    status, about = stage_words(state, variant), ""
    if verdict is not None and verdict.correct:
        status, about = "best" if standing == "best" else "correct", why_no_star(state, variant)
    elif verdict is not None:
        reason = verdict.pattern or verdict.reason
        status, about = verdict.status.replace("_", " "), one_line(reason, REASON_CHARS)
    if standing == "pruned":
        status = "pruned"
    return KernelRow(
        id=variant.id,
        glyph=GLYPHS[standing].unicode,
        style=GLYPHS[standing].style,
        status=status,
        about=about,
        note=one_line(variant.note, REASON_CHARS),
        speedup=speedup_in_words(state, variant) if timed.speedup is not None else "",
        change=change_words(change_against_parent(state, variant)),
        ms=comparable_ms(state, timed) if timed.speedup is not None else "",
        fate="selected" if variant.selected_because else "dropped" if variant.dropped else "",
        why=variant.selected_because or variant.dropped or "",
    )
