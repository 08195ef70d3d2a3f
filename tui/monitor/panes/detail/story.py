"""Why tab: why a kernel was selected or dropped, its idea, its proposer, and its lineage."""

from __future__ import annotations

from typing import Any

from textual.strip import Strip

from engine.config.tolerance import short_caption
from engine.session.records.events import BY_HAND
from engine.session.records.problem_end import is_rounds_complete
from engine.session.records.speedup_text import marked, speedup
from engine.session.records.verdict_text import is_uncertain, speedup_words
from engine.session.state.nodes import TRANSFORMATION
from engine.session.state.session_state import IdeaState, SessionState, VariantState
from tui.compare.change import change_against_parent, change_words
from tui.monitor.panes.detail.text import field, heading, wrapped
from tui.monitor.panes.lines import line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.certainty import comparable_words, interval_words
from tui.text.glyphs import stage_words, why_at_rest
from tui.text.narration import undecided_words
from tui.text.runoff_text import (
    NO_RUNOFF,
    decided_after,
    last_runoff,
    lost_runoff,
    scaled_words,
    why_first_is_not_best,
    why_no_star,
)
from tui.text.same_code import speedup_in_words
from tui.text.sanitize import one_line
from tui.view.model import Model


def why_lines(model: Model, variant: VariantState, palette: Palette, width: int) -> list[Strip]:
    state = model.state
    lines = [line((variant.id, palette.bold), (f"  {_fate(model, variant)[0]}", palette.title))]
    lines += wrapped(_fate(model, variant)[1], palette.text, width)
    lines += _figures(model, variant, palette)
    if reason := why_first_is_not_best(state, variant):
        lines += wrapped(f"{reason}.", palette.text, width)
    if state.is_pinned(variant.id):
        lines.append(line(("pinned: every round selects a parent from this branch", palette.accent)))
    idea = state.ideas.get(variant.idea)
    if idea is not None:
        lines += idea_lines(model, idea, palette, width)
    lines += heading("kernel", palette)
    lines.append(field("written by", f"{variant.proposer}, in round {variant.round}", palette))
    if variant.note:
        lines.append(field("note", variant.note, palette))
    lines += heading(f"lineage, newest first; speedups: {short_caption(model.limits.tolerance)}", palette)
    for name in state.ancestors(variant.id):
        above = state.variants[name]
        why = state.ideas.get(above.idea)
        lines.append(
            line(
                (f"{above.id:<7}", palette.bold),
                (f"r{above.round:<3}", palette.dim),
                (f"{comparable_words(state, above):>7} ", palette.text),
                (f"{change_words(change_against_parent(state, above)):>7}  ", palette.good),
                (one_line(why.text, 160) if why is not None else "", palette.dim),
            )
        )
    if variant.data:
        lines += [*heading("recipe", palette), *_facts(variant.data, palette)]
    return lines


def _figures(model: Model, variant: VariantState, palette: Palette) -> list[Strip]:
    """Return the figures of the kernel's newest verdict and runoff, which may be newer than the kernel's selection."""
    problem = model.state.problems.get(variant.problem)
    if problem is None or variant.speedup is None:
        return []
    between = f" {words}" if (words := interval_words(variant.verdict)) else ""
    tolerance = short_caption(model.limits.tolerance)
    own = f"{speedup_words(variant.verdict)} over eager{between}, {fmt.milliseconds(variant.kernel_ms)} ms, {tolerance}"
    lines = [field("own verdict", own, palette)]
    if runoff := last_runoff(problem, variant):
        lines.append(field("last runoff", runoff, palette))
    if (lost := lost_runoff(problem, variant)) and lost != runoff:
        lines.append(field("lost before", lost, palette))
    if scaled := scaled_words(model.state, variant):
        lines.append(field("in tables", scaled, palette))
    if (why := why_no_star(model.state, variant)).startswith(NO_RUNOFF):
        lines.append(field("not the best", f"{why}; the two verdicts were measured at different times", palette))
    return lines


def idea_lines(model: Model, idea: IdeaState, palette: Palette, width: int) -> list[Strip]:
    """Return an idea in full, with its kernels."""
    lines = heading(f"idea {idea.id}, {idea.category}, by {_author(idea)}", palette)
    lines += wrapped(idea.text, palette.text, width, whole=model.shown_whole_by(idea.id), is_message=False)
    if idea.waiting is not None:
        lacks = "waiting for a kernel" if idea.needs_kernel else "no kernel"
        lines += wrapped(f"{lacks}: {idea.waiting}", palette.warn, width)
    parent = model.state.variants.get(idea.parent or "")
    same = parent is not None and parent.speedup == idea.data.get("parent_speedup")
    lines += _facts(idea.data, palette, uncertain=same and parent is not None and is_uncertain(parent.verdict))
    if idea.parent is not None:
        lines.append(field("parent", idea.parent, palette))
    if idea.variants:
        state = model.state
        variants = [state.variants[name] for name in idea.variants]
        speedups = [f"{v.id} {speedup_in_words(state, v) if v.correct else _status(state, v)}" for v in variants]
        lines.append(field("kernels", "  ".join(speedups), palette))
    return lines


def _author(idea: IdeaState) -> str:
    return f"{idea.proposer}, seeded by hand" if idea.by_hand and idea.proposer != BY_HAND else idea.proposer


def _facts(data: dict[str, Any], palette: Palette, *, uncertain: bool = False) -> list[Strip]:
    """Return the data that a proposer recorded with an idea, as text.

    ``uncertain`` is true if the parent's speedup is uncertain.
    """
    return [field(*_fact(str(key), value, uncertain), palette) for key, value in data.items()]


def _fact(key: str, value: object, uncertain: bool) -> tuple[str, str]:
    """Return a recorded fact as a label and text."""
    if key == TRANSFORMATION:
        return "transform", fmt.transformation_label(one_line(str(value), 600))
    if key == "parent_speedup" and isinstance(value, float):
        return "parent had", f"{marked(speedup(value), uncertain)} over eager"
    return one_line(key, 40).replace("_", " "), one_line(_words(value), 600)


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{str(key).replace('_', ' ')} {_words(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_words(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _fate(model: Model, variant: VariantState) -> tuple[str, str]:
    if model.state.is_pruned(variant.id):
        at = next(node for node in model.state.lineage(variant.id) if node in model.state.pruned)
        return (
            "pruned",
            f"You pruned {at}. Until you restore it, this kernel cannot be a parent or the best kernel.",
        )
    problem = model.state.problems.get(variant.problem)
    decided = decided_after(problem, variant) if problem is not None else None
    when = f" after round {decided}" if decided is not None else ""
    if variant.selected_because is not None:
        return f"selected{when}", variant.selected_because
    if variant.dropped is not None:
        return f"dropped{when}", variant.dropped
    if model.state.is_left_over(variant):
        return "not judged", "The search of the problem ended before the engine judged this kernel."
    if model.state.is_interrupted(variant):
        ended = f"The engine ended while this kernel was in stage {variant.stage}."
        return "interrupted", f"{ended} When you resume the session, the engine judges this kernel again."
    if model.state.awaits_resume(variant):
        ended = f"The engine ended before it judged this kernel ({why_at_rest(model.state)})."
        return stage_words(model.state, variant), f"{ended} When you resume the session, the engine judges it."
    if variant.verdict is not None and not variant.correct and variant.stage is None:
        return "not a candidate", "Only correct kernels can become parents."
    if ended := undecided_words(model.state, variant):
        by_rounds = is_rounds_complete(model.state.problems[variant.problem].finished)
        more = " Press M to add rounds." if by_rounds and not model.source.read_only else ""
        return f"in stage {variant.stage}" if variant.stage is not None else "not selected", f"{ended}{more}"
    if model.link.kind == "ended":
        return "no decision", "The search ended before the engine selected the parents of the next round."
    if variant.stage is not None:
        return f"in stage {variant.stage}", "The engine decides at the end of the round whether to select this kernel."
    return "no decision yet", "The engine decides at the end of the round whether to select this kernel."


def _status(state: SessionState, variant: VariantState) -> str:
    return (
        stage_words(state, variant) if variant.verdict is None or variant.stage is not None else variant.verdict.status
    )
