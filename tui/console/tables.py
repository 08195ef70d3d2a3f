"""Print tables in plain columns, for terminals, pipes and logs."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.config.tolerance import (
    SessionTolerance,
    shared_caption,
    tolerance_caption,
    tolerance_name,
    tolerance_words,
)
from engine.evaluation.inspect.profiler import KernelProfile
from engine.problem.sizes import written
from engine.problem.spec import LANGUAGE_NAMES
from engine.session.library import SavedKernel
from engine.session.records.other_sizes import AtSizes, sizes_in_words
from engine.session.records.speedup_text import (
    MARK,
    footnotes,
    interval,
    is_above_sol,
    marked,
    sol_percent,
    speedup,
)
from engine.session.records.verdict import BuildReport, Standing, Verdict
from engine.session.records.verdict_text import (
    counted_pairs,
    is_uncertain,
    kernelbench_words,
    precision_words,
    speedup_words,
)
from engine.session.state.comparable import comparable_speedup, figures_of
from engine.session.state.session_state import SessionState
from tui.console.clean_console import PIPE_WIDTH, clean_console, print_prose
from tui.text.certainty import PER_SEARCH, comparable_ms, comparable_words, remarks_of, sol_words
from tui.text.format import age, milliseconds
from tui.text.glyphs import stage_words
from tui.text.program import as_typed
from tui.text.runoff_text import BY_RUNOFF, SCALED, why_no_star
from tui.text.same_code import same_machine_code, speedup_in_words, twin_of
from tui.text.sanitize import clean_lines, one_line
from tui.view.results import ResultRow, Results

if TYPE_CHECKING:  # An import at run time would load pydantic into the monitor.
    from engine.doctor.finding import Finding

_WHOLE = ("against", "problem", "kernel", "session", "language", "state", "age", "verdict", "check")
"""Columns of single words, which must not wrap."""
_NOTE_OR_IDEA = "note or idea"
_PROSE = ("", "config", "idea", "inputs", "note", _NOTE_OR_IDEA, "reason")
"""Columns of free text, in which ``~`` does not mark a figure."""
_SOL = "% SOL"
EARLIER = "first ms below best ms: timed under different loads, so only a runoff can compare these kernels"
"""Caption for results whose best kernel seems slower than the first."""
_DROPPED_RESULTS = ("first ms", "compile ms", "correct", _SOL, "vs compile", "95%")
"""Result columns that a narrow terminal drops, in this order. A pipe gets all columns."""
_DROPPED_OF_KERNELS = ("age", "device", "language", "95%", _NOTE_OR_IDEA)
"""Kernel-list columns that a narrow terminal drops, in this order."""
_LEAST_PROSE = 24
"""Minimum width of a column whose text wraps, in cells."""


def console(*, err: bool = False) -> Console:
    """Return a console for standard output, or for standard error.

    A pipe or a file gets no colors. Its lines are neither wrapped nor cut, unless the environment variable ``COLUMNS``
    sets a width.
    """
    stream = sys.stderr if err else sys.stdout
    given = os.environ.get("COLUMNS", "")
    width = int(given) if given.isdecimal() and int(given) > 0 else PIPE_WIDTH
    return clean_console(None if stream.isatty() else width, err=err)


def columns(*names: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in names:
        whole = name in right or name in _WHOLE
        justify: Literal["left", "right"] = "right" if name in right else "left"
        table.add_column(name, justify=justify, no_wrap=whole, overflow="ellipsis" if whole else "fold")
    return table


def drop_columns(out: Console, table: Table, names: Sequence[str]) -> Table:
    """Leave out columns in the order of ``names``, one at a time, until ``table`` fits the console."""
    for name in names:
        if _least_width(table) <= out.width:
            break
        rest = [column for column in table.columns if column.header != name]
        table = columns()
        for one in rest:
            table.add_column(one.header, justify=one.justify, no_wrap=one.no_wrap, overflow=one.overflow)
        for cells in zip(*(one.cells for one in rest), strict=True):
            table.add_row(*cells)
    return table


def _least_width(table: Table) -> int:
    """Return the width in cells that ``table`` needs. A column that wraps needs at most ``_LEAST_PROSE`` cells."""
    widest = (
        (column.no_wrap, max(cell_len(str(cell)) for cell in (column.header, *column.cells)))
        for column in table.columns
    )
    return sum((width if whole else min(width, _LEAST_PROSE)) + 3 for whole, width in widest)


def print_results(results: Results, to_time_compile: str = "") -> None:
    """Print the final table, the files of the best kernels, and remarks. ``to_time_compile`` says how to get missing
    torch.compile times.
    """
    out = console()
    caption = tolerance_caption(results.tolerance)
    seems_slower = (row.first_ms is not None and row.first_ms < (row.best_ms or 0.0) for row in results.problems)
    caption += f"; {EARLIER}" * any(seems_slower)
    print_marked(out, drop_columns(out, _results_table(results), _DROPPED_RESULTS), caption)
    for row in results.problems:
        if row.file is not None:
            print_prose(out, f"best {row.problem}: {row.best} in {row.file}")
        elif row.best is not None:
            print_prose(out, f"best {row.problem}: {row.best}")
    if any(row.best is not None and row.file is None for row in results.problems):
        print_prose(out, "To write these kernels to files: kernel-tui export SESSION --sources DIRECTORY")
    for row in results.problems:
        if row.sizes:
            print_prose(out, f"{row.problem}: {row.best} at other sizes: {one_line(row.sizes)}")
        if row.best is not None and row.kernelbench.startswith("wrong"):
            words = f"{row.problem}: under KernelBench's rules {row.best} is {one_line(row.kernelbench)}"
            print_prose(out, words)
        if row.remark:
            print_prose(out, f"{row.problem}: {one_line(row.remark)}")
    _print_without_compile(out, results.problems)
    if to_time_compile:
        print_prose(out, to_time_compile)


def _print_without_compile(out: Console, rows: Sequence[ResultRow]) -> None:
    """Say which problems have no torch.compile time, and why. Print each reason once."""
    opened = [row for row in rows if row.eager_ms is not None]
    without: dict[str, list[str]] = {}
    for row in opened:
        if row.compile_ms is None and row.compile_note:
            why = "off (torch_compile = false)" if row.compile_note == "off" else one_line(row.compile_note)
            without.setdefault(why, []).append(row.problem)
    for why, names in without.items():
        every = 1 < len(names) == len(opened)
        print_prose(out, f"{'' if every else ', '.join(names) + ': '}no torch.compile time: {why}")


def _results_table(results: Results) -> Table:
    figures = ("eager ms", "compile ms", "first ms", "best ms", "speedup", "95%", "vs compile", _SOL, "correct")
    table = columns("problem", *figures, right=figures)
    for row in results.problems:
        if row.eager_ms is None:
            continue
        table.add_row(
            row.problem,
            milliseconds(row.eager_ms),
            marked(milliseconds(row.compile_ms), row.compile_uncertain),
            milliseconds(row.first_ms),
            milliseconds(row.best_ms),
            marked(speedup(row.speedup), row.uncertain),
            interval(row.speedup_low, row.speedup_high),
            marked(speedup(row.over_compile), row.over_compile_uncertain),
            sol_percent(row.sol_share),
            f"{row.correct}/{row.verdicts}",
        )
    return table


def print_marked(out: Console, table: Table, caption: str | None = None) -> None:
    """Print a table of figures, its caption, and a line that explains each kind of mark in the table."""
    out.print(table)
    if caption:
        print_prose(out, caption, "dim")
    labels = [str(cell) for cell in table.columns[0].cells]
    shares = [  # The name of a marked figure's column or row says whether the figure is a % SOL.
        _SOL in (column.header, label)
        for column in table.columns
        if column.header not in _PROSE
        for label, cell in zip(labels, column.cells, strict=True)
        if re.search(rf"(?:^|\s){MARK}\d", str(cell))
    ]
    print_footnotes(out, uncertain=not all(shares), above_sol=any(shares))


def print_footnotes(out: Console, *, uncertain: bool, above_sol: bool) -> None:
    for note in footnotes(uncertain=uncertain, above_sol=above_sol):
        print_prose(out, note)


def print_verdict(
    name: str,
    verdict: Verdict,
    tolerance: SessionTolerance = None,
    *,
    sol_note: str = "",
    sol_measured: str = PER_SEARCH,
) -> None:
    """Print a verdict with its evidence. The judge applied ``tolerance``.

    ``sol_note`` is a footnote for the SOL. ``sol_measured`` says when the device's peaks were measured.
    """
    out = console()
    speedup = f", {speedup_words(verdict)} over eager" if verdict.correct and verdict.speedup is not None else ""
    out.print(Text(f"{name}: {verdict.status.replace('_', ' ')}{speedup}", style="bold"))
    log = verdict.build.log if verdict.build is not None and not verdict.build.ok else ""
    if verdict.reason and verdict.reason not in log:
        print_prose(out, one_line(verdict.reason))
    _print_lines(out, log)
    facts = Table.grid(padding=(0, 2))
    for label, value in verdict_facts(verdict, tolerance, sol_measured):
        facts.add_row(label, Text(value))
    out.print(facts)
    print_footnotes(out, uncertain=is_uncertain(verdict), above_sol=is_above_sol(verdict.sol_share))
    if sol_note and verdict.sol_share is not None:
        print_prose(out, sol_note, "dim")
    if verdict.checks:
        table = columns("check", "result", "detail")
        for check in verdict.checks:
            table.add_row(check.name, "passed" if check.passed else "FAILED", Text(one_line(check.detail)))
        out.print(table)
    if verdict.output_tail:
        out.print("the kernel printed:")
        _print_lines(out, verdict.output_tail)


def print_at_sizes(results: Sequence[AtSizes], tolerance: SessionTolerance = None) -> None:
    """Print a summary, and one row per size. The judge applied ``tolerance``."""
    out = console()
    print_prose(out, f"at other sizes: {sizes_in_words(results)}")
    table = columns("sizes", "inputs", "verdict", "ms", "eager ms", "speedup", "95%", "reason",
                    right=("ms", "eager ms", "speedup", "95%"))  # fmt: skip
    for one in results:
        table.add_row(
            Text(f"{one.label}: {written(one.sizes)}" if one.label else written(one.sizes)),
            Text(one.shapes),
            one.outcome,
            milliseconds(one.kernel_ms),
            milliseconds(one.eager_ms_for_tables),
            one.speedup_words,
            interval(one.speedup_low, one.speedup_high),
            Text(one_line(one.reason)),
        )
    print_marked(out, table, tolerance_caption(tolerance))


def print_comparison(
    verdicts: Mapping[str, Verdict], standings: Sequence[Standing], tolerance: SessionTolerance = None
) -> None:
    """Print both verdicts, one line each. If both kernels are correct, print the runoff."""
    out = console()
    for name, verdict in verdicts.items():
        more = f", speedup {speedup_words(verdict)} (timed alone)" if verdict.correct else f": {verdict.reason}"
        out.print(Text(as_typed(f"{name}: {verdict.status.replace('_', ' ')}{more}")))
    print_prose(out, tolerance_caption(tolerance), "dim")
    twins = same_machine_code(list(verdicts.values()))
    if twins:
        print_prose(out, f"{' and '.join(verdicts)} compile to the same machine code.", "bold")
    if not standings:
        out.print("not timed side by side: both kernels must be correct")
        return
    fastest, others = standings[0], standings[1:]
    tied = any(standing.tied for standing in others)
    table = columns("side by side", "kernel", "ms", "relative time", "95%", right=("ms", "relative time", "95%"))
    table.add_row("tied" if tied else "FASTEST", Text(fastest.variant), milliseconds(fastest.median_ms), "1", "",
                  style="" if tied else "bold")  # fmt: skip
    for standing in others:
        between = f"{standing.ratio_low:.3f}-{standing.ratio_high:.3f}"
        word = "tied" if standing.tied else "slower"
        ratio = marked(f"{standing.ratio:.3f}", standing.uncertain)
        table.add_row(word, Text(standing.variant), milliseconds(standing.median_ms), ratio, between)
    out.print(table)
    for standing in others:
        if twins:
            said = "Any difference between their times is noise, since both have the same machine code."
        elif standing.tied:
            said = f"{fastest.variant} and {standing.variant} are tied: the measured difference is within noise."
        else:
            times = marked(f"{standing.ratio:.2f}", standing.uncertain)
            said = f"{fastest.variant} is faster: {standing.variant} takes {times} times as long."
            said += f" {MARK}: uncertain, because other programs were running." if standing.uncertain else ""
        print_prose(out, said, "bold")


def print_build(name: str, report: BuildReport) -> None:
    out = console()
    done = "built in" if report.ok else "the build failed after"
    out.print(Text(f"{name}: {done} {report.seconds:.2f} s", style="bold"))
    out.print(Text(report.command), soft_wrap=True)
    figures = {"registers": report.registers, "spilled bytes": report.spill_bytes, "shared bytes": report.shared_bytes}
    for label, figure in figures.items():
        if figure is not None:
            out.print(f"{label}: {figure}")
    _print_lines(out, report.log)


def print_findings(findings: Sequence[Finding]) -> None:
    table = columns("", "check", "what")
    for finding in findings:
        mark = {"ok": "ok", "warn": "warn", "fail": "FAIL"}[finding.level]
        style = {"ok": "green", "warn": "yellow", "fail": "bold red"}[finding.level]
        remedy = f"\n-> {finding.remedy}" if finding.remedy else ""
        table.add_row(Text(mark, style=style), finding.name, Text(as_typed(finding.what + remedy)))
    console().print(table)


def print_profile(launches: Sequence[KernelProfile]) -> None:
    """Print a table of counters for each launch."""
    out = console()
    for launch in launches:
        out.print(Text(one_line(launch.kernel), style="bold"), soft_wrap=True)
        table = columns("", "value", "unit", "counter", right=("value",))
        for one in launch.metrics:
            value = f"{one.value:,.0f}" if abs(one.value) >= 1000 else f"{one.value:.4g}"
            table.add_row(one.label, value, one.unit, Text(one.name, style="dim"))
        out.print(table)


def print_kernels(kernels: Sequence[SavedKernel]) -> None:
    """Print one line per saved kernel, with a tolerance column if tolerances differ.

    Each line ends with the kernel's note, or with its idea if there is no note. The console's width limits its length.
    """
    out = console()
    figures, caption = ("ms", "speedup", "95%"), shared_caption(one.tolerance for one in kernels)
    beside = () if caption is not None else ("tolerance",)
    table = columns(
        "session", "kernel", "problem", "language", "device", *figures, *beside, "age", _NOTE_OR_IDEA, right=figures
    )
    for one in kernels:
        table.add_row(
            Text(one.session),
            f"{one.variant} (best)" if one.best else one.variant,
            Text(one.problem),
            LANGUAGE_NAMES[one.language],
            Text(one.device),
            milliseconds(one.ms),
            marked(speedup(one.speedup), one.uncertain),
            BY_RUNOFF if one.scaled else interval(one.speedup_low, one.speedup_high),
            *(tolerance_name(one.tolerance) for _ in beside),
            age(time.time() - one.at),
            Text(one_line(one.note or one.idea, out.width), no_wrap=True, overflow="ellipsis"),
        )
    table = drop_columns(out, table, _DROPPED_OF_KERNELS)
    if _least_width(table) > out.width:
        table.columns[2].no_wrap, table.columns[2].overflow = False, "fold"
    by_runoff = SCALED if any(one.scaled for one in kernels) else None
    print_marked(out, table, "; ".join(filter(None, [caption, by_runoff])))


def print_rounds(state: SessionState, tolerance: SessionTolerance, problem: str | None = None) -> None:
    """Print every round: its ideas with their best speedups, and the selected kernels with reasons.

    ``problem`` restricts the output to one problem and adds the dropped kernels.
    """
    out = console()
    print_prose(out, tolerance_caption(tolerance), "dim")
    for one in state.problems.values():
        if problem not in (None, one.id):
            continue
        for round_ in one.rounds:
            out.print(Text(f"\n{one.id}, round {round_.number}", style="bold"))
            for name in round_.ideas:
                idea = state.ideas[name]
                variants = [state.variants[v] for v in idea.variants]
                timed = [found for one in variants if (found := twin_of(state, one) or one).speedup is not None]
                fastest = max(timed, key=partial(comparable_speedup, state), default=None)
                on = f" on {idea.parent}" if idea.parent is not None else ""
                reached = comparable_words(state, fastest)
                kernels = f"{len(idea.variants)} kernel{'s' * (len(idea.variants) != 1)}"
                same = ", ".join(dict.fromkeys(one.same_as for one in idea.repeats))
                kernels += f", {len(idea.repeats)} with the same source as {same}" if same else ""
                head = f"  {name}{on} ({idea.category}, {kernels}, best {reached}): "
                print_prose(out, head + one_line(idea.text))
            for kept in round_.selected:
                print_prose(out, f"  selected {kept.variant}: {one_line(kept.why)}", "green")
            for lost in round_.dropped if problem is not None else ():
                print_prose(out, f"  dropped {lost.variant}: {one_line(lost.why)}", "dim")


def print_variants(state: SessionState, names: Sequence[str], tolerance: SessionTolerance) -> None:
    table = columns("kernel", "verdict", "ms", "speedup", "95%", "note", right=("ms", "speedup", "95%"))
    by_runoff = False
    for name in names:
        variant = state.variants[name]
        verdict = variant.verdict
        word = stage_words(state, variant) if verdict is None else verdict.status.replace("_", " ")
        timed = twin_of(state, variant) or variant
        figures = figures_of(state, timed)
        between = interval(verdict.speedup_low, verdict.speedup_high) if verdict is not None else "-"
        between = BY_RUNOFF if figures is not None and figures.scaled else between
        time_ms, reached = comparable_ms(state, timed), speedup_in_words(state, variant)
        note = "; ".join(filter(None, [why_no_star(state, variant), one_line(variant.note)]))
        table.add_row(name, word, time_ms, reached, between, Text(note))
        by_runoff |= between == BY_RUNOFF
    out = console()
    caption = tolerance_caption(tolerance) + f"; {SCALED}" * by_runoff
    print_marked(out, drop_columns(out, table, ("95%",)), caption)


def verdict_facts(
    verdict: Verdict, tolerance: SessionTolerance, sol_measured: str = PER_SEARCH
) -> list[tuple[str, str]]:
    """Return a verdict's evidence as labels and values, without the checks and logs."""
    facts = []
    if verdict.device:
        facts.append(("device", f"{verdict.device} of {verdict.host}" if verdict.host else verdict.device))
    if verdict.kernel is not None:
        kernel = verdict.kernel
        facts.append(("kernel", f"{milliseconds(kernel.median_ms)} ms (p10 {milliseconds(kernel.p10_ms)}, "
                                f"p90 {milliseconds(kernel.p90_ms)}, {kernel.count} calls)"))  # fmt: skip
    if verdict.reference is not None:
        facts.append(("eager", f"{milliseconds(verdict.reference.median_ms)} ms"))
    if verdict.speedup is not None:
        between = interval(verdict.speedup_low, verdict.speedup_high)
        facts.append(("speedup", f"{speedup_words(verdict)} (95%: {between}, {counted_pairs(verdict)} pairs)"))
    facts.append(("tolerance", tolerance_words(tolerance)))
    if (sol := sol_words(verdict, sol_measured)) is not None:
        facts.append(("% SOL", sol))
    if verdict.max_abs_error is not None:
        relative = f", relative {verdict.max_rel_error:.2g}" if verdict.max_rel_error is not None else ""
        facts.append(("largest error", f"{verdict.max_abs_error:.2g}{relative}"))
    if verdict.precision:
        facts.append(("precision", precision_words(verdict)))
    if verdict.pattern is not None:
        facts.append(("pattern", verdict.pattern))
    if verdict.kernelbench is not None:
        facts.append(("KernelBench's rules", one_line(kernelbench_words(verdict.kernelbench))))
    facts += [("remark", flag) for flag in remarks_of(verdict)]
    if verdict.stage_s:
        facts.append(
            ("stages, seconds", ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in verdict.stage_s.items()))
        )
    if verdict.sandbox:
        facts.append(("isolation", verdict.sandbox))
    return facts


def _print_lines(out: Console, text: str) -> None:
    for line in clean_lines(text):
        out.print(Text(f"  {line}"), soft_wrap=True)
