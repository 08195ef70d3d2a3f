"""Tab Why: why a kernel was carried or dropped, its idea, what wrote it, and its lineage back to the first."""

from __future__ import annotations

from typing import Any

from textual.strip import Strip

from engine.events import BY_HAND
from engine.factor import speedup
from engine.state import IdeaState, VariantState
from tui import format as fmt
from tui.certainty import factor_words, interval_words
from tui.heat import NO_HEAT, decided_after, last_heat, why_no_star
from tui.model import Model, change_against_parent
from tui.palette import Palette
from tui.same_code import factor_in_words
from tui.sanitize import one_line
from tui.widgets.detail.text import field, heading, wrapped
from tui.widgets.lines import line


def why_lines(model: Model, variant: VariantState, palette: Palette, width: int) -> list[Strip]:
    state = model.state
    lines = [line((variant.id, palette.bold), (f"  {_fate(model, variant)[0]}", palette.title))]
    lines += wrapped(_fate(model, variant)[1], palette.text, width)
    lines += _figures(model, variant, palette)
    if state.is_pinned(variant.id):
        lines.append(line(("pinned: its branch stays a parent in every round", palette.accent)))
    idea = state.ideas.get(variant.idea)
    if idea is not None:
        lines += idea_lines(model, idea, palette, width)
    lines += heading("kernel", palette)
    lines.append(field("written by", f"{variant.proposer}, in round {variant.round}", palette))
    if variant.note:
        lines.append(field("note", variant.note, palette))
    lines += heading("lineage, newest first", palette)
    for name in state.ancestors(variant.id):
        above = state.variants[name]
        why = state.ideas.get(above.idea)
        lines.append(
            line(
                (f"{above.id:<7}", palette.bold),
                (f"r{above.round:<3}", palette.dim),
                (f"{factor_words(above.verdict):>7} ", palette.text),
                (f"{fmt.change(change_against_parent(state, above)):>7}  ", palette.good),
                (one_line(why.text, 160) if why is not None else "", palette.dim),
            )
        )
    if variant.data:
        lines += [*heading("recipe", palette), *_facts(variant.data, palette)]
    return lines


def _figures(model: Model, variant: VariantState, palette: Palette) -> list[Strip]:
    """How fast it is as things stand: since its fate was decided there may have been another heat, or verdict."""
    problem = model.state.problems.get(variant.problem)
    if problem is None or variant.speedup is None:
        return []
    between = f" {words}" if (words := interval_words(variant.verdict)) else ""
    own = f"{factor_words(variant.verdict)} eager{between}, {fmt.milliseconds(variant.kernel_ms)} ms"
    lines = [field("own verdict", own, palette)]
    if heat := last_heat(problem, variant):
        lines.append(field("last heat", heat, palette))
    reached, star = model.state.best_of_round(variant.problem, variant.round), model.best(problem)
    leads = model.state.leader_of_round(variant.problem, variant.round) is variant
    if leads and reached is not None and star is not None and reached != variant.speedup:
        own = f"{speedup(reached)}: {star.id}'s {factor_words(star.verdict)} by as much less as the heat says"
        lines.append(field(f"row of r{variant.round}", own, palette))
    if (why := why_no_star(model.state, variant)).startswith(NO_HEAT):
        lines.append(field("no star", f"{why}, and each one's figures are of its own minute", palette))
    return lines


def idea_lines(model: Model, idea: IdeaState, palette: Palette, width: int) -> list[Strip]:
    """The idea in full, and what became of it."""
    lines = heading(f"idea {idea.id}, {idea.category}, by {idea.proposer}", palette)
    lines += wrapped(idea.text, palette.text, width, whole=model.shown_whole_by(idea.id))
    if idea.waiting is not None:
        lacks = "waits for an author" if idea.proposer == BY_HAND else "no kernel"
        lines += wrapped(f"{lacks}: {idea.waiting}", palette.warn, width)
    lines += _facts(idea.data, palette)
    if idea.parent is not None:
        lines.append(field("works on", idea.parent, palette))
    if idea.variants:
        state = model.state
        variants = [state.variants[name] for name in idea.variants]
        factors = [f"{v.id} {factor_in_words(state, v) if v.correct else (v.stage or _status(v))}" for v in variants]
        lines.append(field("kernels", "  ".join(factors), palette))
    return lines


def _facts(data: dict[str, Any], palette: Palette) -> list[Strip]:
    """What a proposer noted for itself, as words."""
    return [field(one_line(str(key), 40).replace("_", " "), one_line(_words(value), 600), palette)
            for key, value in data.items()]  # fmt: skip


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
        return "pruned", f"A person pruned {at}. It is never a parent nor the best until restored."
    problem = model.state.problems.get(variant.problem)
    decided = decided_after(problem, variant) if problem is not None else None
    when = f" after round {decided}" if decided is not None else ""
    if variant.carried is not None:
        return f"carried on{when}", variant.carried
    if variant.dropped is not None:
        return f"dropped{when}", variant.dropped
    if variant.stage is not None:
        return f"in stage {variant.stage}", "Carried or dropped is decided at the end of its round."
    return "no decision yet", "Carried or dropped is decided at the end of its round."


def _status(variant: VariantState) -> str:
    return variant.verdict.status if variant.verdict is not None else "-"
