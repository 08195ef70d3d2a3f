"""Kernels with the machine code of one that was timed before: they have its verdict, and no times of their own."""

from __future__ import annotations

from collections.abc import Sequence

from engine.state import SessionState, VariantState
from engine.verdict import Verdict
from tui.certainty import factor_words


def same_machine_code(verdicts: Sequence[Verdict]) -> bool:
    """Whether all of these kernels compile to the same machine code; unknown of those that are no C."""
    codes = {verdict.build.code if verdict.build is not None else "" for verdict in verdicts}
    return len(codes) == 1 and "" not in codes


def twin_of(state: SessionState, variant: VariantState) -> VariantState | None:
    """The correct kernel whose times stand for those of ``variant``; None where it has its own, or is not correct."""
    verdict = variant.verdict
    if verdict is None or not verdict.correct or verdict.same_code_as is None or variant.speedup is not None:
        return None
    return state.variants.get(verdict.same_code_as)


def factor_in_words(state: SessionState, variant: VariantState) -> str:
    """The factor over eager: ``5.70x``; ``= v24 5.70x`` where it is that of a kernel with the same machine code."""
    twin = twin_of(state, variant)
    timed = twin or variant
    factor = factor_words(timed.verdict if timed.speedup is not None else None)
    return factor if twin is None else f"= {twin.id} {factor}"
