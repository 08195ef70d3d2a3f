"""A problem's best kernel: its lineage, the evidence of its verdict, its source and its diff."""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup
from msgspec import Struct

from engine.config.tolerance import SessionTolerance
from engine.problem.spec import LANGUAGE_NAMES
from engine.session.records.other_sizes import AtSizes, sizes_in_words
from engine.session.records.speedup_text import interval
from engine.session.records.verdict import BuildReport, CheckResult
from engine.session.records.verdict_text import speedup_words
from engine.session.state.session_state import SessionState, VariantState
from tui.compare.change import change_against_parent, change_words
from tui.console.tables import verdict_facts
from tui.report.calls import calls_behind
from tui.report.code_markup import diff_markup, source_markup
from tui.source_text.changes import changes_between
from tui.text.certainty import comparable_ms
from tui.text.format import milliseconds
from tui.text.runoff_text import last_runoff
from tui.text.same_code import speedup_in_words, twin_of
from tui.text.sanitize import lines_in, one_line
from tui.view.conversation import Calls

IDEA_CHARS = 260
"""Maximum length of an idea in the lineage, in characters. The page folds a longer idea."""


class Ancestor(Struct, frozen=True):
    """A kernel in the lineage of the best kernel, with its idea. ``calls`` are the ids of the model calls that led to
    the kernel.
    """

    variant: str
    round: int
    speedup: str
    change: str
    ms: str
    category: str
    idea: str
    note: str
    proposer: str
    calls: tuple[str, ...]

    @property
    def begin(self) -> str:
        return one_line(self.idea, IDEA_CHARS)

    @property
    def rest(self) -> bool:
        """Whether ``begin`` leaves out part of the idea."""
        return self.begin != self.idea.strip()


class BestKernel(Struct, frozen=True):
    """A problem's best kernel. ``facts`` are the labels and values of the evidence."""

    variant: str
    language: str
    lines: int
    speedup: str
    interval: str
    ms: str
    over: str
    runoff: str
    lineage: tuple[Ancestor, ...]
    facts: tuple[tuple[str, str], ...]
    passed: int
    checks: tuple[CheckResult, ...]
    sizes: tuple[tuple[str, ...], ...]
    sizes_words: str
    build: tuple[tuple[str, str], ...]
    build_log: str
    output: str
    source: Markup
    parent: str | None
    diff: Markup
    added: int
    removed: int


def best_kernel(
    state: SessionState, variant: VariantState, tolerance: SessionTolerance, text: Callable[[str], str]
) -> BestKernel:
    """Describe a correct kernel. ``text`` reads a blob. Raises SessionError if a source is unreadable."""
    verdict, source = variant.verdict, text(variant.source)
    assert verdict is not None, "a best kernel is correct"
    parent = state.variants.get(variant.parent or "")
    changes = changes_between(text(parent.source), source) if parent is not None else changes_between("", "")
    problem, sizes, index = state.problems[variant.problem], variant.at_sizes, Calls()
    return BestKernel(
        variant=variant.id,
        language=LANGUAGE_NAMES[variant.language],
        lines=lines_in(source),
        speedup=speedup_words(verdict),
        interval=interval(verdict.speedup_low, verdict.speedup_high),
        ms=milliseconds(variant.kernel_ms),
        over=milliseconds(problem.eager_ms(variant)),
        runoff=last_runoff(problem, variant),
        lineage=tuple(_ancestor(state, index, state.variants[name]) for name in reversed(state.ancestors(variant.id))),
        facts=tuple(verdict_facts(verdict, tolerance)),
        passed=sum(check.passed for check in verdict.checks),
        checks=tuple(sorted(verdict.checks, key=lambda check: check.passed)),
        sizes=tuple(_at_sizes(one) for one in sizes.results) if sizes is not None else (),
        sizes_words=(sizes.note or sizes_in_words(sizes.results)) if sizes is not None else "",
        build=_build(verdict.build),
        build_log=verdict.build.log if verdict.build is not None else "",
        output=verdict.output_tail,
        source=source_markup(source, variant.language),
        parent=parent.id if parent is not None else None,
        diff=diff_markup(changes),
        added=changes.added,
        removed=changes.removed,
    )


def _ancestor(state: SessionState, index: Calls, variant: VariantState) -> Ancestor:
    idea, timed = state.ideas.get(variant.idea), twin_of(state, variant) or variant
    return Ancestor(
        variant=variant.id,
        round=variant.round,
        speedup=speedup_in_words(state, variant),
        change=change_words(change_against_parent(state, variant)),
        ms=comparable_ms(state, timed),
        category=idea.category if idea is not None else "",
        idea=idea.text if idea is not None else "",
        note=variant.note,
        proposer=variant.proposer,
        calls=tuple(calls_behind(state, index, variant.id)),
    )


def _at_sizes(one: AtSizes) -> tuple[str, ...]:
    """Return label, inputs, verdict, times, speedup, interval and reason, as ``show`` prints them."""
    between = interval(one.speedup_low, one.speedup_high)
    return (one.label, one.shapes, one.outcome, milliseconds(one.kernel_ms), milliseconds(one.eager_ms_for_tables),
            one.speedup_words, between, one.reason)  # fmt: skip


def _build(build: BuildReport | None) -> tuple[tuple[str, str], ...]:
    if build is None:
        return ()
    figures = (("registers", build.registers, ""), ("spills", build.spill_bytes, " B"),
               ("shared memory", build.shared_bytes, " B"))  # fmt: skip
    known = [(name, f"{value}{unit}") for name, value, unit in figures if value is not None]
    took = (("build", "from the cache" if build.cached else f"{build.seconds:.2f} s"),)
    return (*took, *known, *((("command", build.command),) if build.command else ()))
