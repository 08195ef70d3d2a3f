"""Tables of the command line: plain columns that read the same in a terminal, a pipe and a log."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.evaluation.profile import KernelProfile
from engine.factor import MARK, UNSURE, interval_factor, marked, speedup
from engine.library import SavedKernel
from engine.problem.catalog import ProblemRow
from engine.problem.sizes import written
from engine.session import SessionSummary
from engine.state import SessionState
from engine.verdict import AtSizes, BuildReport, Standing, Verdict, sizes_in_words
from tui.certainty import factor_words
from tui.clean_console import clean_console
from tui.format import age, milliseconds
from tui.results import Results
from tui.same_code import factor_in_words, same_machine_code, twin_of
from tui.sanitize import clean_lines, one_line

if TYPE_CHECKING:  # it would bring pydantic into a monitor that prints its results
    from engine.doctor.finding import Finding

_PIPE_WIDTH = 200
_WHOLE = ("problem", "kernel", "session", "form", "state", "age", "verdict", "check")
"""Columns of one word, which are not broken in it."""
_PROSE = ("", "config", "idea", "inputs", "note", "reason")
"""Columns in which a figure's mark would be somebody's word."""
_CAN_BE_LEFT_OUT = ("first ms", "compile ms", "correct", "floor", "x compile", "95 %")
"""Columns of the results, in the order in which a narrow terminal goes without them; ``show`` in a pipe has all."""


def console() -> Console:
    """Standard output. A pipe gets wide lines and no colours."""
    return clean_console(None if sys.stdout.isatty() else _PIPE_WIDTH)


def columns(*names: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in names:
        whole = name in right or name in _WHOLE
        justify: Literal["left", "right"] = "right" if name in right else "left"
        table.add_column(name, justify=justify, no_wrap=whole, overflow="ellipsis" if whole else "fold")
    return table


def print_results(results: Results) -> None:
    """The table at the end of a search, the files of the best kernels, and what else is worth saying."""
    out = console()
    left_out: tuple[str, ...] = ()
    unbounded = out.options.update_width(10 * _PIPE_WIDTH)
    for left_out in (_CAN_BE_LEFT_OUT[:count] for count in range(len(_CAN_BE_LEFT_OUT) + 1)):
        if out.measure(results_table(results, left_out), options=unbounded).maximum <= out.width:
            break
    print_marked(out, results_table(results, left_out))
    for row in results.problems:
        if row.file is not None:
            out.print(Text(f"best {row.problem}: {row.best} in {row.file}"), soft_wrap=True)
    for row in results.problems:
        if row.sizes:
            out.print(Text(f"{row.problem}: {row.best} at other sizes: {one_line(row.sizes)}"), soft_wrap=True)
        if row.best is not None and row.kernelbench.startswith("wrong"):
            words = f"{row.problem}: by KernelBench's rules {row.best} is {one_line(row.kernelbench)}"
            out.print(Text(words), soft_wrap=True)
        if row.remark:
            out.print(Text(f"{row.problem}: {one_line(row.remark)}"), soft_wrap=True)
        if row.compile_ms is None and row.compile_note and row.eager_ms is not None:
            why = "off (torch_compile = false)" if row.compile_note == "off" else one_line(row.compile_note)
            out.print(Text(f"{row.problem}: no torch.compile time: {why}"), soft_wrap=True)


def results_table(results: Results, left_out: Sequence[str] = ()) -> Table:
    """``left_out``: columns that a narrow terminal has no room for."""
    names = ("eager ms", "compile ms", "first ms", "best ms", "x eager", "95 %", "x compile", "floor", "correct")
    figures = [name for name in names if name not in left_out]
    table = columns("problem", *figures, right=figures)
    for row in results.problems:
        if row.eager_ms is None:
            continue
        share = f"{row.floor_share * 100:.0f} %" if row.floor_share is not None else "-"
        cells = {
            "eager ms": milliseconds(row.eager_ms),
            "compile ms": marked(milliseconds(row.compile_ms), row.compile_unsure),
            "first ms": milliseconds(row.first_ms),
            "best ms": milliseconds(row.best_ms),
            "x eager": interval_factor(row.factor, row.factor_low, row.factor_high),
            "95 %": interval(row.factor_low, row.factor_high),
            "x compile": marked(speedup(row.over_compile), row.compile_unsure),
            "floor": share,
            "correct": f"{row.correct}/{row.verdicts}",
        }
        table.add_row(row.problem, *(cells[name] for name in figures))
    return table


def print_marked(out: Console, table: Table) -> None:
    """A table of figures; where one has a mark, a line says what that means."""
    out.print(table)
    cells = (str(cell) for column in table.columns if column.header not in _PROSE for cell in column.cells)
    if any(re.search(rf"(?:^|\s){MARK}\d", cell) for cell in cells):
        out.print(Text(UNSURE), soft_wrap=True)


def interval(low: float | None, high: float | None) -> str:
    return f"{low:.2f}-{high:.2f}" if low is not None and high is not None else "-"


def print_verdict(name: str, verdict: Verdict) -> None:
    """A verdict with its evidence."""
    out = console()
    out.print(Text(f"{name}: {verdict.status.replace('_', ' ')}", style="bold"))
    if verdict.reason:
        out.print(Text(one_line(verdict.reason)), soft_wrap=True)
    facts = Table.grid(padding=(0, 2))
    for label, value in _facts(verdict):
        facts.add_row(label, Text(value))
    out.print(facts)
    if verdict.hardly_known:
        out.print(Text(UNSURE), soft_wrap=True)
    if verdict.checks:
        table = columns("check", "result", "detail")
        for check in verdict.checks:
            table.add_row(check.name, "passed" if check.passed else "FAILED", Text(one_line(check.detail)))
        out.print(table)
    if verdict.build is not None and not verdict.build.ok:
        _print_lines(out, verdict.build.log)
    if verdict.output_tail:
        out.print("the kernel printed:")
        _print_lines(out, verdict.output_tail)


def print_at_sizes(results: Sequence[AtSizes]) -> None:
    """A row for each of the other sizes, and what they come to."""
    table = columns("sizes", "inputs", "verdict", "ms", "eager ms", "x eager", "95 %", "reason",
                    right=("ms", "eager ms", "x eager", "95 %"))  # fmt: skip
    for one in results:
        table.add_row(
            Text(f"{one.label}: {written(one.sizes)}" if one.label else written(one.sizes)),
            Text(one.shapes),
            one.outcome,
            milliseconds(one.kernel_ms),
            milliseconds(one.eager_ms),
            interval_factor(one.speedup, one.speedup_low, one.speedup_high),
            interval(one.speedup_low, one.speedup_high),
            Text(one_line(one.reason)),
        )
    out = console()
    print_marked(out, table)
    out.print(Text(f"at other sizes: {sizes_in_words(results)}"), soft_wrap=True)


def print_comparison(verdicts: Mapping[str, Verdict], standings: Sequence[Standing]) -> None:
    """Both verdicts in a line each, then the heat if it was run."""
    out = console()
    for name, verdict in verdicts.items():
        line = f"{name}: {verdict.status.replace('_', ' ')}, by itself {factor_words(verdict)} eager"
        out.print(Text(line if verdict.correct else f"{name}: {verdict.status.replace('_', ' ')}: {verdict.reason}"))
    twins = same_machine_code(list(verdicts.values()))
    if twins:
        out.print(Text(f"{' and '.join(verdicts)} compile to the same machine code.", style="bold"), soft_wrap=True)
    if not standings:
        out.print("not timed side by side: only correct kernels are")
        return
    fastest, others = standings[0], standings[1:]
    tied = any(standing.tied for standing in others)
    table = columns("side by side", "kernel", "ms", "times as long", "95 %", right=("ms", "times as long", "95 %"))
    table.add_row("as fast" if tied else "FASTEST", Text(fastest.variant), milliseconds(fastest.median_ms), "1", "",
                  style="" if tied else "bold")  # fmt: skip
    for standing in others:
        between = f"{standing.ratio_low:.3f}-{standing.ratio_high:.3f}"
        word = "as fast" if standing.tied else "slower"
        table.add_row(word, Text(standing.variant), milliseconds(standing.median_ms), f"{standing.ratio:.3f}", between)
    out.print(table)
    for standing in others:
        if twins:
            said = "What differs between their times is chance: they are one kernel."
        elif standing.tied:
            said = f"No difference between {fastest.variant} and {standing.variant} can be told."
        else:
            said = f"{fastest.variant} is the fastest: {standing.variant} takes {standing.ratio:.2f} times as long."
        out.print(Text(said, style="bold"), soft_wrap=True)


def print_build(name: str, report: BuildReport) -> None:
    out = console()
    out.print(Text(f"{name}: {'built' if report.ok else 'does not build'} in {report.seconds:.2f} s", style="bold"))
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
        table.add_row(Text(mark, style=style), finding.name, Text(finding.what + remedy))
    console().print(table)


def print_problems(rows: Sequence[ProblemRow]) -> None:
    """Each named as a config and ``--problem`` take it, with the forms its kernels may have and its tensors."""
    table = columns("problem", "kernels", "inputs and weights -> outputs")
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for row in rows:
        tensors = f"{', '.join((*row.inputs, *row.weights))} -> {', '.join(row.outputs)}" if row.outputs else ""
        words = "\n".join(part for part in (tensors, one_line(row.remark)) if part)
        table.add_row(Text(row.reference), Text(" ".join(row.forms) or "none"), Text(words))
    console().print(table)


def print_sessions(sessions: Sequence[SessionSummary]) -> None:
    """A line each where there is room for that; else the best of each, its config and its note below each other, and
    nothing is cut: who resumes a session needs its name."""
    out = console()
    table = _sessions_table(sessions, in_lines=True)
    if out.measure(table, options=out.options.update_width(10 * _PIPE_WIDTH)).maximum > out.width:
        table = _sessions_table(sessions, in_lines=False)
        name = table.columns[0]
        name.no_wrap, name.overflow, name.max_width = False, "fold", max(16, out.width // 3)
    print_marked(out, table)


def _sessions_table(sessions: Sequence[SessionSummary], *, in_lines: bool) -> Table:
    beside = ("config", "") if in_lines else ()
    table = columns("session", "state", "age", "verdicts", "best", *beside, right=("age", "verdicts"))
    for one in sessions:
        best = Text(", ".join(one.bests))
        since = age(time.time() - one.created) if one.created else "-"
        config, note = one_line(Path(one.config_name).name), one_line(one.note)
        below = Text(": ".join(filter(None, [config, note])), style="dim")
        cells = (
            [best, Text(config), Text(note, style="dim")]
            if in_lines
            else [Text("\n").join(filter(None, [best, below]))]
        )
        table.add_row(Text(one.name), one.state, since, str(one.verdicts), *cells)
    return table


def print_profile(launches: Sequence[KernelProfile]) -> None:
    """The counters of every launch, one table each."""
    out = console()
    for launch in launches:
        out.print(Text(one_line(launch.kernel), style="bold"), soft_wrap=True)
        table = columns("", "value", "unit", "counter", right=("value",))
        for one in launch.metrics:
            value = f"{one.value:,.0f}" if abs(one.value) >= 1000 else f"{one.value:.4g}"
            table.add_row(one.label, value, one.unit, Text(one.name, style="dim"))
        out.print(table)


def print_kernels(kernels: Sequence[SavedKernel]) -> None:
    """Kernels of the library, a row each."""
    figures = ("ms", "x eager", "95 %")
    table = columns("session", "kernel", "problem", "form", "device", *figures, "age", "idea", right=figures)
    for one in kernels:
        table.add_row(
            Text(one.session),
            f"{one.variant} (best)" if one.best else one.variant,
            Text(one.problem),
            one.form,
            Text(one.device),
            milliseconds(one.ms),
            interval_factor(one.speedup, one.speedup_low, one.speedup_high),
            interval(one.speedup_low, one.speedup_high),
            age(time.time() - one.at),
            Text(one_line(one.idea, 100)),
        )
    print_marked(console(), table)


def print_rounds(state: SessionState, problem: str | None = None) -> None:
    """Every round: its parents, its ideas with the best factor each reached, and who was carried or dropped, and why.

    ``problem``: that one alone, with the drops.
    """
    out = console()
    for one in state.problems.values():
        if problem not in (None, one.id):
            continue
        for round_ in one.rounds:
            out.print(Text(f"\n{one.id}, round {round_.number}", style="bold"))
            for name in round_.ideas:
                idea = state.ideas[name]
                variants = [state.variants[v] for v in idea.variants]
                timed = [found for one in variants if (found := twin_of(state, one) or one).speedup is not None]
                fastest = max(timed, key=lambda one: one.speedup or 0.0, default=None)
                on = f" on {idea.parent}" if idea.parent is not None else ""
                reached = factor_words(fastest.verdict if fastest is not None else None)
                kernels = f"{len(idea.variants)} kernel{'s' * (len(idea.variants) != 1)}"
                head = f"  {name}{on} ({idea.category}, {kernels}, best {reached}): "
                out.print(Text(head + one_line(idea.text)), soft_wrap=True)
            for kept in round_.survivors:
                out.print(Text(f"  carried {kept.variant}: {one_line(kept.why)}", style="green"), soft_wrap=True)
            for lost in round_.dropped if problem is not None else ():
                out.print(Text(f"  dropped {lost.variant}: {one_line(lost.why)}", style="dim"), soft_wrap=True)


def print_variants(state: SessionState, names: Sequence[str]) -> None:
    table = columns("kernel", "verdict", "ms", "x eager", "95 %", "note", right=("ms", "x eager", "95 %"))
    for name in names:
        variant = state.variants[name]
        verdict = variant.verdict
        word = (variant.stage or "-") if verdict is None else verdict.status.replace("_", " ")
        between = interval(verdict.speedup_low, verdict.speedup_high) if verdict is not None else "-"
        timed = twin_of(state, variant) or variant
        time_ms, factor = milliseconds(timed.kernel_ms), factor_in_words(state, variant)
        table.add_row(name, word, time_ms, factor, between, Text(one_line(variant.note)))
    print_marked(console(), table)


def _facts(verdict: Verdict) -> list[tuple[str, str]]:
    facts = []
    if verdict.device:
        facts.append(("device", verdict.device))
    if verdict.kernel is not None:
        kernel = verdict.kernel
        facts.append(("kernel", f"{milliseconds(kernel.median_ms)} ms (p10 {milliseconds(kernel.p10_ms)}, "
                                f"p90 {milliseconds(kernel.p90_ms)}, {kernel.count} calls)"))  # fmt: skip
    if verdict.reference is not None:
        facts.append(("eager", f"{milliseconds(verdict.reference.median_ms)} ms"))
    if verdict.speedup is not None:
        between = interval(verdict.speedup_low, verdict.speedup_high)
        facts.append(("factor", f"{factor_words(verdict)} (95 %: {between}, {verdict.counted_pairs} pairs)"))
    if verdict.floor_share is not None:
        facts.append(("floor", f"{milliseconds(verdict.floor_ms)} ms, reached to {verdict.floor_share * 100:.0f} %"))
    if verdict.max_abs_error is not None:
        relative = f", relative {verdict.max_rel_error:.2g}" if verdict.max_rel_error is not None else ""
        facts.append(("largest error", f"{verdict.max_abs_error:.2g}{relative}"))
    if verdict.precision:
        facts.append(("precision", verdict.precision_in_words))
    if verdict.pattern is not None:
        facts.append(("pattern", verdict.pattern))
    if verdict.kernelbench is not None:
        facts.append(("by KernelBench's rules", one_line(verdict.kernelbench.words)))
    facts += [("remark", flag) for flag in verdict.flags]
    if verdict.stage_s:
        facts.append(("seconds", ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in verdict.stage_s.items())))
    if verdict.sandbox:
        facts.append(("isolation", verdict.sandbox))
    return facts


def _print_lines(out: Console, text: str) -> None:
    for line in clean_lines(text):
        out.print(Text(f"  {line}"), soft_wrap=True)
