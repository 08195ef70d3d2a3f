"""Glyphs for a node's state. Glyphs differ in shape, so that color is optional, and each has an ASCII form."""

from __future__ import annotations

from typing import NamedTuple

from engine.session.state.session_state import SessionState, VariantState


class Glyph(NamedTuple):
    unicode: str
    ascii: str
    style: str
    """A field of ``tui.monitor.theme.palette.Palette``."""
    meaning: str


GLYPHS: dict[str, Glyph] = {
    "best": Glyph("★", "*", "best", "fastest correct kernel of its problem"),
    "correct": Glyph("●", "o", "good", "correct and timed"),
    "running": Glyph("◐", ">", "running", "being built or judged, or waiting for the device"),
    "queued": Glyph("·", ".", "dim", "queued, or without a verdict until a resume"),
    "wrong": Glyph("✗", "x", "bad", "wrong result"),
    "build_error": Glyph("■", "#", "bad", "does not build"),
    "failed": Glyph("▼", "!", "bad", "crashed, timed out, or was stopped by the sandbox"),
    "cheating": Glyph("≈", "=", "warn", "false speedup: the judge found a cheat"),
    "library": Glyph("▤", "%", "warn", "calls a library, so the judge rejects it"),
    "error": Glyph("?", "?", "warn", "the evaluation itself failed"),
    "cancelled": Glyph("○", "0", "dim", "canceled or left without a verdict"),
    "pruned": Glyph("⊘", "-", "dim", "pruned by the user"),
    "waiting": Glyph("✎", "&", "warn", "idea that is waiting for a kernel"),
    "idea": Glyph("◇", "i", "text", "idea"),
    "pinned": Glyph("▪", "^", "accent", "pinned"),
    "marked": Glyph("⚑", "@", "accent", "marked for a comparison"),
    "open": Glyph("▾", "v", "dim", "unfolded"),
    "folded": Glyph("▸", "+", "dim", "folded"),
}

_WHY_AT_REST = {"budget": "budget used up", "error": "engine failed"}
FAILED = frozenset({"out_of_bounds", "crashed", "timeout", "memory", "forbidden"})


def standing_of(state: SessionState, variant: VariantState) -> str:
    """Return the key of ``GLYPHS`` for a variant."""
    if state.is_pruned(variant.id):
        return "pruned"
    if state.is_left_over(variant):
        return "cancelled"
    if variant.stage is not None:
        return "queued" if variant.stage == "queued" or state.is_interrupted(variant) else "running"
    if variant.verdict is None:
        return "queued"
    problem = state.problems.get(variant.problem)
    if problem is not None and problem.best == variant.id:
        return "best"
    status = variant.verdict.status
    return "failed" if status in FAILED else status


def stage_words(state: SessionState, variant: VariantState) -> str:
    """Return the stage of a kernel without a verdict, such as ``building`` or ``not queued``.

    A kernel is ``not judged`` if the search, the problem's turn or the engine ended first. If the engine ended during
    the evaluation, the kernel is ``interrupted``.
    """
    if state.is_left_over(variant) or (state.is_pruned(variant.id) and state.at_rest and variant.id in state.flight):
        return "not judged"
    if state.is_interrupted(variant):
        return "interrupted"
    if state.awaits_resume(variant):
        return "not judged again" if variant.was_judged else "not judged"
    return variant.stage or "not queued"


def why_at_rest(state: SessionState) -> str:
    """Say why no engine judges kernels now, in a few words, or return "" if an engine is running."""
    if not state.at_rest or state.engine is None:
        return ""
    if state.engine.stopped is None:
        return "engine died"
    return _WHY_AT_REST.get(state.engine.stopped, "search stopped")


def not_judged_words(state: SessionState) -> str:
    """Return the number of kernels that the ended engine did not judge, such as ``3 kernels not judged``, or ""."""
    number = state.not_judged()
    return f"{number} kernel{'' if number == 1 else 's'} not judged" if number else ""


def stage_words_with_reason(state: SessionState, variant: VariantState) -> str:
    """Return the stage of a kernel without a verdict. If only a resume can give it one, say so, and why."""
    words = stage_words(state, variant)
    return f"{words} until a resume: {why_at_rest(state)}" if state.awaits_resume(variant) else words


def glyph(name: str, *, ascii_only: bool) -> str:
    found = GLYPHS.get(name, GLYPHS["error"])
    return found.ascii if ascii_only else found.unicode
