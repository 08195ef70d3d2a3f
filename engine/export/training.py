"""Training data: one JSON object a line for each judged kernel, with what it was written from. Pure but for reading.

The fields are those that a kernel-writing model learns from: the problem, the idea, the parent with its verdict, the
source, the verdict with the words of compiler or checker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from engine.nodes import VariantState
from engine.state import SessionState
from engine.verdict import UNJUDGED, Verdict


class Outcome(Struct, frozen=True):
    """A verdict in short: milliseconds, ``speedup`` over eager with its 95 % interval, the compiler's ``log``.

    ``kernelbench``: the status by KernelBench's rules, None where that was not asked.
    """

    status: str
    reason: str
    pattern: str | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    kernel_ms: float | None
    reference_ms: float | None
    max_rel_error: float | None
    floor_share: float | None
    kernelbench: str | None
    flags: tuple[str, ...]
    log: str


class Written(Struct, frozen=True):
    """A kernel as it was written, and what came of it."""

    variant: str
    form: str
    source: str
    proposer: str
    note: str
    outcome: Outcome | None


class IdeaText(Struct, frozen=True):
    idea: str
    category: str
    text: str
    proposer: str


class Record(Struct, frozen=True):
    """One line. ``reference`` is the problem's file, ``header`` what the kernel was compiled with."""

    session: str
    problem: str
    reference: str
    header: str
    device: str
    round: int
    idea: IdeaText | None
    parent: Written | None
    kernel: Written


def records(state: SessionState, text: Callable[[str], str]) -> Iterator[Record]:
    """A record for each variant with a verdict that says something about it, oldest first.

    ``text`` reads a blob of the session.
    """
    for variant in state.variants.values():
        verdict, problem = variant.verdict, state.problems.get(variant.problem)
        if verdict is None or problem is None or verdict.status in UNJUDGED:
            continue
        idea = state.ideas.get(variant.idea)
        parent = state.variants.get(variant.parent or "")
        yield Record(
            state.name,
            problem.spec.name,
            problem.spec.source,
            problem.header,
            verdict.device,
            variant.round,
            IdeaText(idea.id, idea.category, idea.text, idea.proposer) if idea is not None else None,
            _written(parent, text) if parent is not None else None,
            _written(variant, text),
        )


def encode(record: Record) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(record) + b"\n"


def _written(variant: VariantState, text: Callable[[str], str]) -> Written:
    outcome = _outcome(variant.verdict) if variant.verdict is not None else None
    return Written(variant.id, variant.form, text(variant.source), variant.proposer, variant.note, outcome)


def _outcome(verdict: Verdict) -> Outcome:
    return Outcome(
        verdict.status,
        verdict.reason,
        verdict.pattern,
        verdict.speedup,
        verdict.speedup_low,
        verdict.speedup_high,
        verdict.kernel.median_ms if verdict.kernel is not None else None,
        verdict.reference.median_ms if verdict.reference is not None else None,
        verdict.max_rel_error,
        verdict.floor_share,
        verdict.kernelbench.status if verdict.kernelbench is not None else None,
        verdict.flags,
        verdict.build.log if verdict.build is not None else "",
    )
