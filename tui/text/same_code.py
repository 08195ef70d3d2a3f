"""Find kernels that share a timed kernel's verdict and times, because their machine code is the same."""

from __future__ import annotations

from collections.abc import Sequence

from engine.session.records.verdict import Verdict
from engine.session.state.session_state import SessionState, VariantState
from tui.text.certainty import comparable_words


def same_machine_code(verdicts: Sequence[Verdict]) -> bool:
    """Return whether all kernels compile to the same machine code. Always False for Python kernels."""
    codes = {verdict.build.code if verdict.build is not None else "" for verdict in verdicts}
    return len(codes) == 1 and "" not in codes


def twin_of(state: SessionState, variant: VariantState) -> VariantState | None:
    """Return the kernel whose times ``variant`` shares, or None if ``variant`` was timed or is not correct."""
    verdict = variant.verdict
    if verdict is None or not verdict.correct or verdict.same_code_as is None or variant.speedup is not None:
        return None
    return state.variants.get(verdict.same_code_as)


def speedup_in_words(state: SessionState, variant: VariantState) -> str:
    """Format the comparable speedup as ``5.70x``, or as ``= v24 5.70x`` if v24 has the same machine code."""
    twin = twin_of(state, variant)
    speedup = comparable_words(state, twin or variant)
    return speedup if twin is None else f"= {twin.id} {speedup}"
