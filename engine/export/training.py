"""Export training data: one line of JSON for each judged kernel. The module performs no I/O except to read blobs.

Each record contains the problem, the idea, the parent with its verdict, the source, and the verdict with its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from engine.config.tolerance import SessionTolerance, tolerance_of
from engine.problem.spec import LANGUAGE_NAMES
from engine.session.records.counters import KernelCounters
from engine.session.records.events import Profiled
from engine.session.records.verdict import UNJUDGED, Launch, Verdict
from engine.session.state.nodes import VariantState
from engine.session.state.session_state import SessionState


class Outcome(Struct, frozen=True):
    """A short form of a verdict: times in milliseconds, ``speedup`` over eager with its 95% interval, and the
    compiler's ``log``.

    ``kernelbench``: the status under KernelBench's rules, or None if the judge did not check them.
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
    sol_share: float | None
    kernelbench: str | None
    flags: tuple[str, ...]
    log: str
    launches: tuple[Launch, ...] = ()
    bottleneck: str | None = None
    """The bottleneck according to hardware counters; None if the search did not read them."""
    counters: tuple[KernelCounters, ...] = ()


class Written(Struct, frozen=True):
    """A kernel's source and outcome."""

    variant: str
    language: str
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
    """One line of training data.

    ``reference``: the text of the problem's file. ``header``: the kernel's derived header. ``tolerance``: the name of
    the tolerance that the judge applied, as in :mod:`engine.config.tolerance`.
    """

    session: str
    problem: str
    reference: str
    header: str
    device: str
    tolerance: SessionTolerance
    round: int
    idea: IdeaText | None
    parent: Written | None
    kernel: Written


def records(state: SessionState, text: Callable[[str], str]) -> Iterator[Record]:
    """Yield a record for each variant whose evaluation was not canceled and did not fail, oldest first.

    ``text`` reads a blob of the session.
    """
    tolerance = tolerance_of(state.config, text)
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
            tolerance,
            variant.round,
            IdeaText(idea.id, idea.category, idea.text, idea.proposer) if idea is not None else None,
            _written(parent, text) if parent is not None else None,
            _written(variant, text),
        )


def encode(record: Record) -> bytes:
    """Format a record as one line of JSON."""
    return msgspec.json.encode(record) + b"\n"


def _written(variant: VariantState, text: Callable[[str], str]) -> Written:
    outcome = _outcome(variant.verdict, variant.profile) if variant.verdict is not None else None
    return Written(
        variant.id, LANGUAGE_NAMES[variant.language], text(variant.source), variant.proposer, variant.note, outcome
    )


def _outcome(verdict: Verdict, profile: Profiled | None) -> Outcome:
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
        verdict.sol_share,
        verdict.kernelbench.status if verdict.kernelbench is not None else None,
        verdict.flags,
        verdict.build.log if verdict.build is not None else "",
        verdict.launches,
        profile.bottleneck if profile is not None else None,
        profile.launches if profile is not None else (),
    )
