"""One glyph per standing of a node. They differ in shape, so that they read without colour; each has an ASCII twin."""

from __future__ import annotations

from typing import NamedTuple

from engine.state import SessionState, VariantState


class Glyph(NamedTuple):
    unicode: str
    ascii: str
    style: str
    """A field of ``tui.palette.Palette``."""
    meaning: str


GLYPHS: dict[str, Glyph] = {
    "best": Glyph("★", "*", "best", "fastest correct kernel of its problem"),
    "correct": Glyph("●", "o", "good", "correct and timed"),
    "running": Glyph("◐", ">", "running", "being built, checked or timed"),
    "queued": Glyph("·", ".", "dim", "waiting for its turn"),
    "wrong": Glyph("✗", "x", "bad", "wrong result"),
    "build_error": Glyph("■", "#", "bad", "does not build"),
    "failed": Glyph("▼", "!", "bad", "crashed, timed out, or was stopped by the sandbox"),
    "cheating": Glyph("≈", "=", "warn", "false win: a cheat was found"),
    "library": Glyph("▤", "%", "warn", "calls a library, which does not count"),
    "error": Glyph("?", "?", "warn", "the evaluation itself failed"),
    "cancelled": Glyph("○", "0", "dim", "cancelled"),
    "pruned": Glyph("⊘", "-", "dim", "pruned by a person"),
    "waiting": Glyph("✎", "&", "warn", "idea that waits for an author"),
    "idea": Glyph("◇", "i", "text", "idea"),
    "pinned": Glyph("▪", "^", "accent", "pinned"),
    "open": Glyph("▾", "v", "dim", "unfolded"),
    "folded": Glyph("▸", "+", "dim", "folded"),
}

FAILED = frozenset({"out_of_bounds", "crashed", "timeout", "memory", "forbidden"})


def standing_of(state: SessionState, variant: VariantState) -> str:
    """The key of ``GLYPHS`` for a variant."""
    if state.is_pruned(variant.id):
        return "pruned"
    if variant.stage is not None:
        return "queued" if variant.stage == "queued" else "running"
    if variant.verdict is None:
        return "queued"
    problem = state.problems.get(variant.problem)
    if problem is not None and problem.best == variant.id:
        return "best"
    status = variant.verdict.status
    return "failed" if status in FAILED else status


def glyph(name: str, *, ascii_only: bool) -> str:
    found = GLYPHS.get(name, GLYPHS["error"])
    return found.ascii if ascii_only else found.unicode
